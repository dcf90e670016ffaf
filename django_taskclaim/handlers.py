"""What is done with a claimed row: the registry that ``@handler`` fills from each app's ``claims.py``."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cached_property
from typing import Any, TypedDict, TypeVar, Unpack

from django.apps import apps
from django.core.exceptions import AppRegistryNotReady, ImproperlyConfigured
from django.db import models
from django.db.models.expressions import Combinable

from django_taskclaim import columns, conf
from django_taskclaim.awaitables import is_coroutine_function, name_of
from django_taskclaim.completion import Archive, Clear, CompletionOption, Mark
from django_taskclaim.conf import accepting
from django_taskclaim.db.notify import called_for
from django_taskclaim.limits.key_limits import limits_of_policy
from django_taskclaim.policy import Backoff, Policy, Rule, policies, policy_for
from django_taskclaim.querysets.completing import checked_results
from django_taskclaim.querysets.scope import Rows, refuse_unclaimable

F = TypeVar("F", bound=Callable[..., Any])

#: Calls of a coroutine function that are under way in one process, where the handler names no number.
CONCURRENCY = 10


@dataclass(frozen=True, eq=False)
class Handler(Policy):
    """A function, how it is called, and the policy of its model; a field left None follows the settings.

    The options of ``@handler`` are the fields, under their names or ``own_…``.
    """

    model: type[models.Model]
    function: Callable[..., Any]
    own_batch_size: int | None = conf.option(conf.BATCH_SIZE)
    own_timeout: timedelta | None = conf.option(conf.DURATION)
    #: A written ``timeout=None``.
    unlimited: bool = False
    update_fields: Collection[str] = ()
    #: The function gets the rows of a claim together, and answers for each.
    batch: bool = conf.option(conf.FLAG, default=False)
    #: The function and the completion share one transaction.
    atomic: bool = conf.option(conf.FLAG, default=False)
    #: How many calls of a coroutine function may be under way in one process.
    concurrency: int = conf.option(conf.whole_number(), default=CONCURRENCY)
    health_checks: Sequence[Callable[[str], str | None]] = conf.option(
        conf.list_of("a list of functions", callable), default=()
    )
    queryset: Rows | None = conf.option(
        accepting("a queryset", lambda rows: isinstance(rows, models.QuerySet))
    )
    #: The function gets the sources of the rows, which are companions.
    gets_sources: bool = False
    #: A statement that adds rows wakes idle workers, where the database can do that.
    wake_up: bool = conf.option(conf.FLAG, default=False)

    @property
    def name(self) -> str:
        return name_of(self.function)

    @cached_property
    def needs_source(self) -> bool:
        """Whether the rows are companions, which are nothing without their sources."""
        return columns.is_companion(self.model)

    @cached_property
    def has_ranges(self) -> bool:
        """Whether a row is a range of keys: long work, of which a worker takes no more than it runs."""
        return columns.has_ranges(self.model)

    @cached_property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return is_coroutine_function(self.function)

    @property
    def batch_size(self) -> int:
        """How many rows one claim asks for, as long as nobody knows how long they take."""
        usual = 1 if self.has_ranges else int(conf.setting("BATCH_SIZE"))
        return self.own_batch_size or usual

    @property
    def timeout(self) -> timedelta | None:
        """How long one row may run; None for ever."""
        usual: timedelta | None = conf.setting("TIMEOUT")
        return None if self.unlimited else self.own_timeout or usual

    def rows(self, using: str | None = None) -> Any:
        """Return the queryset that claims start from: the handler's own, or the model's default manager."""
        rows: Any = self.model._default_manager if self.queryset is None else self.queryset
        return rows.using(using) if using else rows.all()


class HandlerOptions(TypedDict, total=False):
    """The options of ``@handler``.

    The function of a companion (``SourceMixin``) gets the source instead of the row, and ``update_fields`` may name
    columns of either. A row whose source is gone fails.
    """

    # What is written

    #: Columns that are written from the instance in the statement that completes the row, so no ``save()`` is needed.
    #: Other columns that the function sets are not written, and the worker warns of that. The statement sends no
    #: ``post_save``.
    update_fields: Collection[str]
    #: What becomes of a row that is done, see ``django_taskclaim.completion``.
    completion: CompletionOption
    #: The function and the completion are one transaction on the row's database, so what it writes there happens
    #: exactly once. A coroutine function cannot be atomic.
    atomic: bool

    # What is claimed, and when

    #: Narrows what is claimed.
    queryset: Rows | None
    #: The order of all claims of the model, as in ``QuerySet.order_by()``; the order of a queryset goes before it.
    order_by: Sequence[str | Combinable]
    #: The most rows of one claim; without it as many as take about a second.
    batch_size: int | None
    #: How long a claim lasts unless it is renewed, in seconds or a timedelta.
    lease: float | timedelta | None
    #: How many rows all workers and callers together may claim: ``100/m``, with s, m, h or d. What
    #: ``switch.set_overrides`` or ``manage.py claimlimit`` has stored goes before this and the next two.
    rate: str | None
    #: How many rows may be processing at once.
    max_running: int | None
    #: When rows are claimed: ``22:00-06:00``, in ``TIME_ZONE``.
    hours: str | None
    #: For columns of the model, how many rows with one value may be processing at once.
    limit_per: Mapping[str, int]
    #: A column; rows with one value are claimed one by one and in order. A row that waits for its retry keeps those
    #: behind it back.
    serial_by: str | None
    #: Whether a row that failed keeps those behind it back, too; True without it.
    failed_blocks: bool
    #: They stop the claims of this model while one of them says so. Each gets the database's alias, and returns the
    #: reason or None.
    health_checks: Sequence[Callable[[str], str | None]]
    #: New rows are taken within milliseconds, not at the next poll, on PostgreSQL without a pooler.
    wake_up: bool

    # How the function is called

    #: It gets the list of rows of one claim. It returns None when all are done, or what became of each: a mapping from
    #: rows (or keys) to None for done or to an exception, or an iterable of done rows and of (row, exception) pairs. A
    #: row that it does not mention has failed. When it raises, it is called again with halves of the batch, until the
    #: row that raises is alone; only that one is charged. An atomic batch is all or nothing.
    batch: bool
    #: Bounds one call; only a written None lifts it.
    timeout: float | timedelta | None
    #: How many calls of a coroutine function may run at once in one process.
    concurrency: int
    #: The tries of a row.
    max_attempts: int | None
    #: A function from the number of failures to the wait before the next try.
    backoff: Backoff | None
    #: What classes of exceptions mean: ``Permanent``, a ``RetryLater``, or None: as usual.
    errors: Mapping[type[BaseException], Rule]


def handler(model: type[models.Model], **options: Unpack[HandlerOptions]) -> Callable[[F], F]:
    """Register the decorated function as what workers do with each row of *model*.

    The function, plain or ``async def``, gets one row. When it returns, the row is completed. When it raises, the row
    is tried again later or fails: ``Permanent`` fails it at once, ``RetryLater`` puts it back uncounted. A handler
    goes before a ``process()`` of the model.

    The options, and what each means, are those of ``HandlerOptions``.

    Raises TypeError or ValueError in one sentence for options that make no sense, ImproperlyConfigured for a second
    handler of the same model, and AppRegistryNotReady in a module that Django loads with the models.
    """

    def decorate(function: F) -> F:
        _register(model, function, options)
        return function

    # @handler without parentheses is refused.
    return decorate(model) if inspect.isroutine(model) else decorate


def _register(
    given_model: object, function: Callable[..., object], options: HandlerOptions
) -> None:
    if not apps.models_ready:
        text = "Django loads this module before all models are there."
        raise AppRegistryNotReady(f"{text} Put the handler into the app's claims.py.")
    if unknown := sorted(options.keys() - HandlerOptions.__annotations__.keys()):
        known = ", ".join(sorted(HandlerOptions.__annotations__))
        raise TypeError(f"@handler has no option {', '.join(unknown)}. It has {known}.")
    model = _model_of(given_model)
    if columns.has_claim_columns(model) and not columns.is_claimable(model):
        # The check E005 says what is wrong with its columns.
        return
    columns.claim_columns(model)
    names = {one.name.removeprefix("own_"): one.name for one in fields(Handler)}
    given: dict[str, Any] = {names[option]: value for option, value in options.items()}
    given["unlimited"] = options.get("timeout", 0) is None
    new = Handler(model, function, gets_sources=columns.is_companion(model), **given)
    checked_results(model, new.update_fields)
    if new.queryset is not None:
        refuse_unclaimable(new.queryset)
    # Django refuses names that it does not know.
    models.QuerySet(model).order_by(*new.order_by)
    if new.counts_by_column:
        # ValueError for a column that cannot be counted by.
        list(limits_of_policy(model, new))
    for mistake in _mistakes(new):
        raise TypeError(f"{new.name} {mistake}.")
    old = policies.get(model)
    if isinstance(old, Handler) and old.name != new.name:
        text = f"{model._meta.label} has the handler {old.name}; {new.name} is a second one."
        raise ImproperlyConfigured(text)
    policies[model] = new
    if new.wake_up:
        called_for.add(columns.claim_columns(model).owner)


def _model_of(given: object) -> type[models.Model]:
    """Return the model that ``@handler`` was given."""
    if not (inspect.isclass(given) and issubclass(given, models.Model)):
        raise TypeError(f"@handler takes a model, such as @handler(Photo), not {given!r:.200}.")
    if given._meta.abstract:
        text = "is abstract and has no rows. Write a line for each model that inherits from it."
        raise TypeError(f"{given.__name__} {text}")
    return given


def _mistakes(new: Handler) -> Iterator[str]:
    """Yield why the options make no sense for the function or the model."""
    is_generator = inspect.isgeneratorfunction(new.function) and not new.batch
    if is_generator or inspect.isasyncgenfunction(new.function):
        yield f"is {'a' if is_generator else 'an async'} generator; let it return what it would yield"
    if new.is_async and new.atomic:
        yield "cannot be atomic: Django has no transactions across await. Make it a plain function"
    if new.concurrency != CONCURRENCY and not new.is_async:
        yield "is no coroutine function; what bounds it is claimworker --threads"
    rows, own = new.queryset, columns.claim_columns(new.model)
    if rows is not None and rows.model._meta.concrete_model is not new.model._meta.concrete_model:
        yield f"has a queryset of {rows.model._meta.label}, not of {new.model._meta.label}"
    own_tables: set[Any] = {new.model._meta.concrete_model, *new.model._meta.all_parents}
    if isinstance(new.completion, Archive) and new.completion.to._meta.concrete_model in own_tables:
        yield "must archive its rows on another table than their own"
    if isinstance(new.completion, Clear) and None in (own.not_before, own.attempts):
        yield f"opens rows again, which needs RetryMixin: class {new.model.__name__}(RetryMixin, ClaimMixin)"
    if reason := _why_not_one(new.function):
        yield f"must take {'a list of rows' if new.batch else 'one row'}: {reason}"
    is_special = new.batch or new.is_async or new.atomic or not isinstance(new.completion, Mark)
    if new.has_ranges and is_special:
        yield "must be a plain function of one range, which stays: leave out batch, atomic, async and completion"


def handler_for(model: type[models.Model]) -> Handler | None:
    """Return the handler of *model*: the registered one, its own ``process()``, or None."""
    found, own = policies.get(model), getattr(model, "process", None)
    if isinstance(found, Handler):
        return found
    if not callable(own) or _why_not_one(own):
        return None
    policy = policy_for(model)
    return Handler(model, own, **{one.name: getattr(policy, one.name) for one in fields(Policy)})


def _why_not_one(function: Callable[..., object]) -> str:
    """Say why the function cannot be called with one argument; empty where it can."""
    try:
        inspect.signature(function).bind(object())
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def models_with_handler() -> list[type[models.Model]]:
    """Return the models with a registered handler, and those with a table and a ``process()`` of their own."""
    registered = [model for model, policy in policies.items() if isinstance(policy, Handler)]
    own = [
        model
        for model in apps.get_models()
        if columns.is_claimable(model)
        and columns.claim_columns(model).owner is model
        and handler_for(model)
    ]
    return sorted({*registered, *own}, key=lambda model: model._meta.label)


def unregister(model: type[models.Model]) -> None:
    """Forget the handler of *model* and let its policy follow the settings again; for tests and shells."""
    policies.pop(model, None)
