"""What is done with a claimed row: the registry that ``@handler`` fills from each app's ``claims.py``."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, TypeVar, cast

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.db.models.expressions import Combinable

from django_taskclaim import conf
from django_taskclaim.awaitables import is_coroutine_function, name_of, refuse_not_run
from django_taskclaim.columns import claim_columns, has_ranges, is_claimable
from django_taskclaim.companions.sources import hand_out, lacks_source, load_readable_sources
from django_taskclaim.completion import Completion, CompletionOption, Mark, as_completion
from django_taskclaim.links import is_companion
from django_taskclaim.policy import (
    Backoff,
    Policy,
    Rule,
    fault_of,
    faults,
    policy_for,
    refuse_no_number,
    set_policy,
)
from django_taskclaim.querysets.completing import complete
from django_taskclaim.querysets.limits import refuse_uncountable
from django_taskclaim.querysets.results import with_locked_source
from django_taskclaim.querysets.scope import refuse_unknown_order
from django_taskclaim.querysets.unreadable import fail_unreadable
from django_taskclaim.querysets.waking import called_for
from django_taskclaim.ranges.walking import end_walks, refuse_unfinished
from django_taskclaim.unsaved import UnsavedColumns

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Handler:
    """A function and how its rows are claimed; a field left None follows the settings."""

    model: type[models.Model]
    function: Callable[..., Any]
    own_batch_size: int | None = None
    own_timeout: timedelta | None = None
    #: How long the claims of one worker last, where its options say so.
    own_lease: timedelta | None = None
    unlimited: bool = False
    update_fields: Sequence[str] = ()
    #: The function gets the rows of a claim together, and answers for each.
    batch: bool = False
    #: The function and the completion share one transaction.
    atomic: bool = False
    own_concurrency: int | None = None
    #: Asked beside those of the settings, for this model alone.
    health_checks: Sequence[Any] = ()
    queryset: "models.QuerySet[Any] | None" = field(default=None, compare=False)
    #: The function gets the sources of the rows, which are companions.
    gets_sources: bool = False
    #: What becomes of a companion whose source is gone: ``fail`` or ``complete``.
    missing_source: str = "fail"
    #: Whoever adds rows calls the workers that are idle, where the database can do that.
    wake_up: bool = False
    # Asked for each row, so found out once.
    #: Whether the rows are companions, which are nothing without their sources.
    needs_source: bool = field(init=False, compare=False)
    #: Whether a row is a range of keys: long work, of which a worker takes no more than it runs.
    has_ranges: bool = field(init=False, compare=False)
    #: Whether the function is a coroutine function.
    is_async: bool = field(init=False, compare=False)
    #: Finds what the function sets although nothing writes it.
    unsaved: UnsavedColumns = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs_source", is_companion(self.model))
        object.__setattr__(self, "has_ranges", has_ranges(self.model))
        object.__setattr__(self, "is_async", is_coroutine_function(self.function))
        object.__setattr__(self, "unsaved", UnsavedColumns(self.model, self.update_fields))

    def call(self, rows: Sequence[Any]) -> Any:
        """Call the function with its row, or as a batch handler with all of *rows*, and return what it answers.

        TypeError where that is work which nobody has run, such as the coroutine of a function that is not async.
        """
        seen = self.unsaved.before(rows)
        answer = self._answer(rows)
        if answer is not None:
            refuse_not_run(answer, self.function)
        if changed := self.unsaved.after(seen):
            self.unsaved.look(changed)
        return answer

    async def acall(self, rows: Sequence[Any]) -> Any:
        """Do what ``call`` does with a coroutine function."""
        seen = self.unsaved.before(rows)
        answer = await self._answer(rows)
        refuse_not_run(answer, self.function, may_yield=self.batch)
        if changed := self.unsaved.after(seen):
            await sync_to_async(self.unsaved.look)(changed)
        return answer

    def _answer(self, rows: Sequence[Any]) -> Any:
        if self.has_ranges:
            try:
                answer = self.function(rows[0])
            finally:
                end_walks()
            refuse_not_run(answer, self.function)
            refuse_unfinished(rows[0])
            return None
        if not self.batch:
            return self.function(hand_out(rows[0]) if self.gets_sources else rows[0])
        answer = self.function([hand_out(row) if self.gets_sources else row for row in rows])
        # What is yielded is part of the call, and of its transaction.
        return list(answer) if inspect.isgenerator(answer) else answer

    def prepare(self, rows: Sequence[Any]) -> list[Any]:
        """Load what the function needs beside the claimed *rows*, and return those that it can be called with.

        That is the sources of companions, all in one query; a row whose source cannot be read fails with the error.
        """
        self.unsaved.read_settings()
        unreadable = load_readable_sources(rows) if self.needs_source else []
        if not unreadable:
            return list(rows)
        fail_unreadable(unreadable)
        failed = {id(row) for row, _ in unreadable}
        return [row for row in rows if id(row) not in failed]

    def lacks_source(self, row: Any) -> bool:
        """Say whether the function cannot be called with *row*, for it is a companion whose source is gone."""
        return self.needs_source and lacks_source(row)

    def complete(self, rows: Sequence[Any]) -> int:
        """Complete *rows* with what the function set on them, or on their sources; ClaimLost as from the verb."""
        may_be_gone = self.missing_source == "complete"
        return complete(self.model, rows, self.update_fields, may_be_gone=may_be_gone)

    def held_up(self, rows: Sequence[Any]) -> list[Any]:
        """Return those of *rows* that ``complete`` would have to wait for, because somebody has locked their source."""
        if not self.needs_source:
            return []
        return with_locked_source(rows, self.update_fields)

    @property
    def concurrency(self) -> int:
        """How many calls of a coroutine function may be under way in one process."""
        if self.own_concurrency is not None:
            return self.own_concurrency
        return int(conf.setting("CONCURRENCY"))

    @property
    def name(self) -> str:
        return name_of(self.function)

    @property
    def given_batch_size(self) -> int | None:
        """How many rows the options or the settings have claimed at a time at most; None where they do not say."""
        if self.own_batch_size is not None or self.has_ranges:
            return self.own_batch_size
        size: int | None = conf.given("BATCH_SIZE")
        return size

    @property
    def batch_size(self) -> int:
        """How many rows are claimed at a time, as long as nobody knows how long they take."""
        given = self.given_batch_size
        if given is not None:
            return given
        return 1 if self.has_ranges else int(conf.setting("BATCH_SIZE"))

    @property
    def timeout(self) -> timedelta | None:
        """How long one row may run; None for ever."""
        if self.unlimited:
            return None
        if self.own_timeout is not None:
            return self.own_timeout
        default = conf.setting("TIMEOUT")
        return None if default is None else conf.as_duration(default)

    @property
    def policy(self) -> Policy:
        return policy_for(self.model)

    @property
    def lease(self) -> timedelta:
        """How long a worker's claim lasts unless renewed."""
        return self.policy.lease if self.own_lease is None else self.own_lease

    def rows(self, using: str | None = None) -> Any:
        """Return the queryset that claims start from: the handler's own, or the model's default manager."""
        rows: Any = (
            self.queryset if self.queryset is not None else self.model._default_manager.all()
        )
        return rows.using(using) if using else rows.all()


_UNSET: Any = object()
#: What can become of a companion whose source is gone.
MISSING_SOURCE = ("fail", "complete")
_handlers: dict[type[models.Model], Handler] = {}

#: Registrations made while models are still being loaded.
_waiting: list[Callable[[], object]] = []


def _noted_for_checks(make: F) -> F:
    """Let ``handler`` take labels, and note while Django starts what it refuses: a traceback would hide the checks."""

    @functools.wraps(make)
    def decorator(model: Any = None, **options: Any) -> Any:
        def decorate(function: Any) -> Any:
            if not apps.models_ready:
                _waiting.append(functools.partial(decorate, function))
                return function
            try:
                return make(_model_of(model), **options)(function)
            except Exception as error:
                if apps.ready:
                    raise
                _note_fault(model, function, error)
                return function

        if inspect.isroutine(model):
            # @handler without parentheses
            return decorate(model)
        return make(_model_of(model), **options) if apps.ready else decorate

    return cast(F, decorator)


def register_waiting() -> None:
    """Register what was decorated while models were still being loaded."""
    while _waiting:
        _waiting.pop(0)()


def _model_of(given: Any) -> type[models.Model]:
    """Return the model that ``@handler`` was given, or the one that its label names."""
    if given is None or inspect.isroutine(given):
        raise TypeError("The model is missing. Write @handler(Photo), or @handler('photos.Photo').")
    if isinstance(given, str):
        return _labelled(given)
    if not (inspect.isclass(given) and issubclass(given, models.Model)):
        raise TypeError(
            f"@handler takes a model, such as Photo or 'photos.Photo', not {given!r:.200}."
        )
    if given._meta.abstract:
        below = [f"@handler({kind.__name__})" for kind in given.__subclasses__()]
        raise TypeError(
            f"{given.__name__} is abstract and has no rows. Write a line for each model that inherits from it:"
            f" {', '.join(below) or '@handler(Photo)'}."
        )
    return given


def _labelled(label: str) -> type[models.Model]:
    try:
        return apps.get_model(label)
    except (LookupError, ValueError):
        known = {model._meta.label.lower(): model._meta.label for model in apps.get_models()}
        close = get_close_matches(label.lower(), known, n=1)
        meant = f"Did you mean {known[close[0]]!r}?" if close else "Write 'app_label.Model'."
        raise ImproperlyConfigured(f"No installed model is called {label!r}. {meant}") from None


def _note_fault(given: Any, function: Any, error: Exception) -> None:
    try:
        model: Any = given if inspect.isclass(given) else apps.get_model(given)
    except (AttributeError, LookupError, ValueError):
        model = None
    code = getattr(inspect.unwrap(function), "__code__", None)
    line = f" (line {code.co_firstlineno})" if code is not None else ""
    faults.append((model, f"{name_of(function)}{line} is not registered as a handler: {error}"))


@_noted_for_checks
def handler(
    model: type[models.Model] | str,
    *,
    batch_size: int | None = None,
    lease: float | timedelta | None = None,
    timeout: float | timedelta | None = _UNSET,
    max_attempts: int | None = None,
    backoff: Backoff | None = None,
    errors: Mapping[type[BaseException], Rule] | None = None,
    completion: CompletionOption = "mark",
    update_fields: Sequence[str] = (),
    batch: bool = False,
    atomic: bool = False,
    concurrency: int | None = None,
    health_checks: Sequence[Any] = (),
    queryset: "models.QuerySet[Any] | None" = None,
    order_by: "Sequence[str | Combinable]" = (),
    limit_per: Mapping[str, int] | None = None,
    rate: str | None = None,
    max_running: int | None = None,
    hours: str | None = None,
    serial_by: str | None = None,
    failed_blocks: bool = True,
    missing_source: str = "fail",
    wake_up: bool = False,
) -> Callable[[F], F]:
    """Register the decorated function as what workers do with each row of *model*.

    The function, plain or ``async def``, gets one row. When it returns, the row is completed, and the columns named
    in *update_fields* are written from the instance in the same fenced statement: no ``save()`` is needed. Other
    columns that it sets are not written, and the worker says so (see the setting ``FAIL_UNSAVED``). The statement sends
    no ``post_save``; with ``completion="save"`` each row is saved by its own ``save()``. When the function raises, the
    row is put back (see *max_attempts*, *backoff*) or failed: ``Permanent`` fails it at once,
    ``RetryLater`` puts it back uncounted. *batch_size* rows at most are claimed at a time, without it as many as take
    about a second, for *lease* (seconds or timedelta), renewed while they run. *timeout* bounds one call; only a
    written None lifts it. *backoff* gets the number of failures and returns seconds or a timedelta. *errors* says for
    classes of exceptions what they mean: ``Permanent``, a ``RetryLater``, or a ``Retry`` with tries and back-off of its
    own. *completion* says what becomes of a row that is done, see ``django_taskclaim.completion``. *queryset* narrows
    what is claimed. *order_by* is the order of all claims of the model, in the words of ``QuerySet.order_by()``; that
    of a queryset goes before it.
    *limit_per* maps columns of the model to how many rows with one value of each may be processing at once, whoever
    claims them and wherever.
    *rate* (``100/m``; s, m, h or d) is how many rows all who claim may claim in a time, *max_running* how many may be
    processing at once, *hours* (``22:00-06:00``, in ``TIME_ZONE``) when rows are claimed at all; what
    ``django_taskclaim.limits.set_limits`` or ``manage.py claimlimit`` has stored for the model goes before these.
    *serial_by* names a column whose rows of one value are claimed one at a time and in order: one that waits for its
    retry keeps those behind it back, and so does one that failed, unless *failed_blocks* is False.

    With *batch* the function gets the list of rows of one claim. It returns None when all are done, or says what became
    of each: a mapping from rows (or keys) to None for done or to an exception, or an iterable of done rows and of
    (row, exception) pairs. A row that it does not mention has failed. When it raises, it is called again with halves
    of the batch, until the row that raises is alone; only that one is charged.

    With *atomic* the function and the completion are one transaction on the row's database, so what it writes there
    happens exactly once; an atomic batch is all or nothing. A coroutine function cannot be atomic. *concurrency* is
    how many calls of a coroutine function may be under way at a time in one process. *health_checks* stop the claims
    of this model while one of them says so, beside those of the settings. With *wake_up* new rows are taken within
    milliseconds instead of at the next poll, on PostgreSQL without a pooler; elsewhere it changes nothing.

    The function of a companion (``SourceMixin``) gets the source instead of the row, and *update_fields* may name
    columns of either. A row whose source is gone fails, or is completed with ``missing_source="complete"``, and the
    function is not called.

    *model* may be a label (``"photos.Photo"``). A handler goes before a ``process()`` of the model.

    Raises TypeError or ValueError in one sentence for options that make no sense, and ImproperlyConfigured for a
    second handler of the same model. While Django starts nothing is raised: ``manage.py check`` reports it (E014), and
    nothing claims rows of that model.
    """
    assert not isinstance(model, str), "its label has been looked up"
    claim_columns(model)
    refuse_no_number(batch_size, "batch_size", conf.MAX_BATCH_SIZE)
    refuse_no_number(max_attempts, "max_attempts")
    refuse_no_number(concurrency, "concurrency")
    if backoff is not None and not callable(backoff):
        raise TypeError(f"backoff must be a function of the number of failures, not {backoff!r}.")
    if not isinstance(health_checks, (list, tuple)):
        raise TypeError(f"health_checks is a list of checks, not {health_checks!r}.")
    if isinstance(update_fields, str) or not _are_names(update_fields):
        raise TypeError(f"update_fields is a list of names, not {update_fields!r:.200}.")
    if queryset is not None and not isinstance(queryset, models.QuerySet):
        raise TypeError(f"queryset must be a queryset of {model.__name__}, not {queryset!r}.")
    if missing_source not in MISSING_SOURCE:
        raise ValueError(
            f"missing_source must be {' or '.join(MISSING_SOURCE)}, not {missing_source!r}."
        )
    if not isinstance(order_by, (list, tuple)):
        raise TypeError(f"order_by is a list of names and expressions, not {order_by!r}.")
    policy = Policy(
        own_lease=None if lease is None else conf.positive_duration(lease, "lease"),
        own_max_attempts=max_attempts,
        own_backoff=backoff,
        own_errors=errors or {},
        completion=as_completion(completion),
        own_limit_per={} if limit_per is None else limit_per,
        own_order=tuple(order_by),
        own_rate=rate,
        own_max_running=max_running,
        own_hours=hours,
        own_serial_by=serial_by,
        own_failed_blocks=failed_blocks,
    )
    if policy.own_order:
        refuse_unknown_order(model, policy.own_order)
    if policy.counts_by_column:
        refuse_uncountable(model, policy)
    given = (
        None if timeout is _UNSET or timeout is None else conf.positive_duration(timeout, "timeout")
    )

    def register(function: F) -> F:
        _refuse_shape(function, batch=batch, atomic=atomic, concurrency=concurrency)
        if has_ranges(model):
            _refuse_for_ranges(function, batch=batch, atomic=atomic, completion=policy.completion)
        _register(
            Handler(
                model=model,
                function=function,
                own_batch_size=batch_size,
                own_timeout=given,
                unlimited=timeout is None,
                update_fields=tuple(update_fields),
                batch=batch,
                atomic=atomic,
                own_concurrency=concurrency,
                health_checks=tuple(health_checks),
                queryset=queryset,
                gets_sources=is_companion(model),
                missing_source=missing_source,
                wake_up=wake_up,
            )
        )
        set_policy(model, policy)
        return function

    return register


def _are_names(given: Any) -> bool:
    return isinstance(given, Collection) and all(isinstance(name, str) for name in given)


def _refuse_shape(
    function: Callable[..., Any], *, batch: bool, atomic: bool, concurrency: int | None
) -> None:
    name = name_of(function)
    if inspect.isasyncgenfunction(function):
        raise TypeError(f"{name} is an async generator; let it return what it would yield.")
    if inspect.isgeneratorfunction(function) and not batch:
        raise TypeError(f"{name} must be a plain function that takes one row; it is a generator.")
    if is_coroutine_function(function):
        if atomic:
            raise TypeError(
                f"{name} cannot be atomic: Django has no transactions across await. Make it a plain function."
            )
    elif concurrency is not None:
        raise TypeError(
            f"{name} is no coroutine function; what bounds it is claimworker --threads."
        )
    if reason := _why_not_one(function):
        what = "a list of rows" if batch else "one row"
        raise TypeError(f"{name} must take {what}: {reason}.")


def _refuse_for_ranges(
    function: Callable[..., Any], *, batch: bool, atomic: bool, completion: Completion
) -> None:
    name = name_of(function)
    if batch or is_coroutine_function(function):
        raise TypeError(f"{name} must be a plain function of one range, which it walks in chunks.")
    if atomic:
        raise TypeError(
            f"{name} walks a range, whose chunks are transactions of their own; leave out atomic=True."
        )
    if not isinstance(completion, Mark):
        raise TypeError(
            f"{name} walks a range, and ranges that are done must stay: the plan goes on behind the last of them. Leave"
            " out the completion."
        )


def _register(new: Handler) -> None:
    old = _handlers.get(new.model)
    if old is not None and old.name != new.name:
        raise ImproperlyConfigured(
            f"{new.model._meta.label} has the handler {old.name}; {new.name} is a second one."
        )
    _handlers[new.model] = new
    _note_who_is_called()


def _note_who_is_called() -> None:
    """Tell whoever adds rows for which tables workers want to be called."""
    called_for.clear()
    called_for.update(claim_columns(one.model).owner for one in _handlers.values() if one.wake_up)


def handler_for(model: type[models.Model]) -> Handler | None:
    """Return the handler of *model*: the registered one, its own ``process()``, or None."""
    found, own = _handlers.get(model), getattr(model, "process", None)
    if found is None and callable(own) and not fault_of(model) and not _why_not_one(own):
        found = Handler(model=model, function=own)
    return found


def _why_not_one(function: Callable[..., Any]) -> str:
    """Say why the function cannot be called with one argument; empty where it can."""
    try:
        inspect.signature(function).bind(object())
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def models_with_handler() -> list[type[models.Model]]:
    """Return the models with a registered handler, and those with a table and a ``process()`` of their own."""
    own = [
        model
        for model in apps.get_models()
        if is_claimable(model) and claim_columns(model).owner is model and handler_for(model)
    ]
    return sorted({*_handlers, *own}, key=lambda model: model._meta.label)


def unregister(model: type[models.Model]) -> None:
    """Forget the handler of *model* and let its policy follow the settings again; for tests and shells."""
    from django_taskclaim.policy import forget_policy

    _handlers.pop(model, None)
    _note_who_is_called()
    forget_policy(model)
