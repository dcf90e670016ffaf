"""What Django's own writes may do to claimable rows: never write a claim column, never pass a lost claim.

On a row that exists, a claim column that was assigned is an error before any SQL. A new row is created open, unless
it was constructed with another initial state that is allowed, and with nothing that only a claim writes.
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import datetime
from functools import partial, wraps
from typing import Any, Self, TypeVar, cast

from django.core.exceptions import ValidationError
from django.db import connections, models, router, transaction

from django_taskclaim import conf
from django_taskclaim.claim import (
    ATTRIBUTE,
    COMPLETED,
    LOADED,
    UNCHANGED,
    Claim,
    claim_of,
    end_claims,
    remember,
    show,
    standing_claim,
)
from django_taskclaim.columns import claim_columns
from django_taskclaim.db.notify import call_workers
from django_taskclaim.exceptions import ClaimColumnError, ClaimLost
from django_taskclaim.fields import MARKS, RangeColumn, as_utc, before_marks
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.writes import lock_claims, raise_lost
from django_taskclaim.states import Status

M = TypeVar("M", bound=models.Model)
R = TypeVar("R")


class FencedModel(models.Model):
    """Base of the mixins: the writes of one row.

    It hooks into methods that Django documents for no one, but that all saving goes through. Fixtures call
    ``save_base`` unbound, past its override here, so that what must hold of them, too, is further inside.
    """

    class Meta:
        abstract = True

    @classmethod
    def from_db(
        cls, db: str | None, field_names: Iterable[str], values: object, **kwargs: object
    ) -> Self:
        row = super().from_db(db, field_names, values, **kwargs)  # type: ignore[arg-type]  # passed on as it came
        row.__dict__[LOADED] = (field_names, values, UNCHANGED)
        return row

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
        from_queryset: Any = None,
    ) -> None:
        """Django's ``refresh_from_db``; the claim that the instance carries stays what it was."""
        names = None if fields is None else list(fields)
        if from_queryset is None and claim_of(self) is not None:
            from_queryset = _all_rows(type(self), using, instance=self)
        super().refresh_from_db(using, names, from_queryset)
        ours = claim_columns(type(self)).guarded_names
        remember(self, ours if names is None else ours.intersection(names))

    def save(self, *args: Any, **kwargs: Any) -> Any:
        """Django's ``save``, without the claim columns and fenced while the row carries a claim.

        Takes and returns what the next base does. Raises ClaimColumnError before any SQL where a claim column was
        assigned or named, and ClaimLost where the claim stands no more; then nothing was written and the caller's
        transaction must be rolled back.
        """
        refuse_names(type(self), kwargs.get("update_fields"), "update_fields of save()")
        if is_stored(self) and (self._state.adding or self.pk is None):
            # By Django's copy idiom. A deferred column cannot be loaded: the row of the copy does not exist yet.
            for field in claim_columns(type(self)).guarded:
                self.__dict__.setdefault(field.attname, field.get_default())
        else:
            refuse_assigned(self)
        saved: Any = super().save(*args, **kwargs)
        remember(self, claim_columns(type(self)).guarded_names)
        return saved

    def save_base(self, *args: Any, **kwargs: Any) -> None:
        alias = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        save = partial(super().save_base, *args, **{**kwargs, "using": alias})
        claim, concrete = claim_on(self, alias), cast("Any", self._meta.concrete_model)
        if kwargs.get("force_insert") and claim is not None:
            # An INSERT would first load what is deferred, from a row that may be gone.
            raise ClaimLost([self], reason=NEVER_INSERTED)
        if claim is None or claim.ended or not concrete._meta.parents:
            save()
            return
        # The save may write other tables before ours, or only others.
        _while_held([self], alias, save)

    def _save_table(
        self, raw: bool = False, cls: object = None, *args: object, **kwargs: object
    ) -> object:
        vars(self._state)["taskclaim_raw"] = raw
        return super()._save_table(raw, cls, *args, **kwargs)  # type: ignore[misc]  # not in django-stubs

    def _do_update(  # type: ignore[override]  # which arguments follow depends on Django's version
        self, base_qs: Any, using: str, pk_val: Any, values: Any, *more: Any
    ) -> object:
        columns, claim = claim_columns(type(self)), claim_on(self, using)
        update: Any = super()._do_update
        if claim is not None:
            base_qs = _all_rows(base_qs.model, using)
        if base_qs.model is not columns.owner:
            return update(base_qs, using, pk_val, values, *more)
        raw = vars(self._state)["taskclaim_raw"]
        writes_ours = raw and conf.setting("FIXTURES_WRITE_CLAIMS")
        if not writes_ours:
            guarded = set(columns.guarded)
            values = [entry for entry in values if entry[0] not in guarded]
        is_fenced = claim is not None and not claim.ended
        if claim is not None and is_fenced:
            fence = ClaimTarget.of(type(self), using).table.standing(claim.token)
            base_qs = base_qs.extra(where=[fence.text], params=fence.params)
        found = (values or not is_fenced) and update(base_qs, using, pk_val, values, *more)
        if found and claim is None and not writes_ours and not is_stored(self):
            # The row keeps its values of our columns, not those that this instance was constructed with.
            show([self], dict.fromkeys(columns.guarded, models.DEFERRED))
        if found or claim is None:
            return found
        if claim.ended:
            raise ClaimLost([self], reason=NEVER_INSERTED)
        # Nothing was to be written to this table, or the server does not count a row that has not changed.
        if lock_claims([self]):
            raise_lost([self], [])
        return [()]

    def _do_insert(self, manager: Any, using: str, *more: Any) -> object:
        if claim_on(self, using) is not None:
            raise ClaimLost([self], reason=NEVER_INSERTED)
        raw = vars(self._state)["taskclaim_raw"]
        if not raw and manager.model is claim_columns(type(self)).owner:
            prepare_new_row(self)
        insert: Any = super()._do_insert  # type: ignore[misc]  # not in django-stubs
        inserted = insert(manager, using, *more)
        call_workers(manager.model, using)
        return inserted


class FencedQuerySet(models.QuerySet[M]):
    """Base of ``ClaimQuerySet``: the writes of many rows."""

    def update(self, **kwargs: object) -> int:
        """Django's ``update``; ClaimColumnError if a claim column is named."""
        refuse_names(self.model, kwargs, "update()")
        return super().update(**kwargs)

    def bulk_update(
        self, objs: Iterable[M], fields: Iterable[str], batch_size: int | None = None
    ) -> int:
        """Django's ``bulk_update``, fenced: where an instance's claim was lost, ClaimLost and nothing written.

        Instances that carry a claim are written as by a verb: this queryset's conditions do not count.
        """
        rows, names = list(objs), list(fields)
        refuse_names(self.model, names, "bulk_update()")
        self._for_write = True
        held = [row for row in rows if standing_claim(row) is not None and claim_on(row, self.db)]
        claimed, write_others = set(map(id, held)), super().bulk_update
        others = [row for row in rows if id(row) not in claimed]

        def write() -> int:
            written: int = _all_rows(self.model, self.db).bulk_update(held, names, batch_size)
            return written + write_others(others, names, batch_size)

        return _while_held(held, self.db, write)

    def bulk_create(
        self,
        objs: Iterable[M],
        batch_size: int | None = None,
        ignore_conflicts: bool = False,
        update_conflicts: bool = False,
        update_fields: Collection[str] | None = None,
        unique_fields: Collection[str] | None = None,
    ) -> list[M]:
        """Django's ``bulk_create``; rows are created as by ``save()``, and an upsert writes no claim column.

        Raises ClaimLost for an instance that was ever claimed under the key that it would insert.
        """
        rows = list(objs)
        refuse_names(self.model, update_fields, "bulk_create(update_fields=…)")
        self._for_write = True
        claimed = [row for row in rows if claim_on(row, self.db) is not None]
        if claimed:
            raise ClaimLost(claimed, reason=NEVER_INSERTED)
        for row in rows:
            prepare_new_row(row)
        created = super().bulk_create(
            rows, batch_size, ignore_conflicts, update_conflicts, update_fields, unique_fields
        )
        columns = claim_columns(self.model)
        for row in created:
            remember(row, columns.guarded_names)
        call_workers(columns.owner, self.db)
        return created


def fence_delete(model: Any) -> None:
    """Fence the ``delete()`` of *model*, whichever base it comes from: one before our mixin may never call its own.

    It takes and returns what that does, and deleting the row ends its claim. Raises ClaimLost where the claim stands no
    more; nothing was deleted and the caller's transaction stays usable. Where the answer to its COMMIT was lost, the
    instance keeps its key and its claim, and the call may be repeated: CommitUnknown then means that the row is gone,
    or another's.
    """
    unfenced = model.delete
    if hasattr(unfenced, "is_fenced"):
        return

    @wraps(unfenced)
    def delete(row: models.Model, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("using", args[0] if args else None)
        # The arguments of a user's base class may come first.
        is_alias = given in list(connections)
        alias: Any = given if is_alias else router.db_for_write(type(row), instance=row)
        claim, key = claim_on(row, alias), row.pk
        if claim is None or claim.ended:
            return unfenced(row, *args, **kwargs)
        stands = gone = False
        deleted: Any = None
        try:
            with transaction.atomic(using=alias):
                stands = not lock_claims([row])
                if stands:
                    deleted = unfenced(row, *args, **kwargs)
                    # A user's base class may only mark the row, or delete it by a queryset: then the key stays here.
                    # With keep_parents=True the row of a parent, which may be the one that is claimed, stays.
                    has_key = row.pk == key or type(row)._meta.parents
                    gone = not has_key or bool(lock_claims([row]))
        except BaseException:
            # Django has removed the key already. The call can be repeated only with it.
            if stands and row.pk != key:
                row.pk, claim.unanswered = key, True
            raise
        if not stands:
            claim.ambiguous = claim.ambiguous or claim.unanswered
            raise_lost([row], [])
        if gone:
            end_claims([claim], COMPLETED)
        return deleted

    vars(delete)["is_fenced"] = True
    model.delete = delete


def _while_held(rows: list[Any], using: str, write: Callable[[], R]) -> R:
    """Lock the tokens of *rows*, then *write* in the same transaction; ClaimLost where one stands no more."""
    with transaction.atomic(using=using, savepoint=False):
        lost = lock_claims(rows)
        if not lost:
            return write()
    raise_lost(lost, [])


def _all_rows(model: type[models.Model], using: str | None, **hints: Any) -> models.QuerySet[Any]:
    """Return every row of *model*: one that is claimed may be hidden by the base manager (``base_manager_name``)."""
    return models.QuerySet(model, using=using, hints=hints)


# What an instance may be saved with


#: Why an instance that carries a claim, or once did, is not stored as a new row under the key that it had claimed.
NEVER_INSERTED = "the row is gone, and an instance that was claimed never inserts its key again"

_VERB_FOR: dict[Any, str] = {
    Status.OPEN: "row.claim.release(), or reset() on a queryset",
    Status.PROCESSING: "claim_batch()",
    Status.COMPLETE: "row.claim.complete(), or just return from a handler",
    Status.FAILED: "row.claim.fail(error)",
    Status.PAUSED: "pause_rows() on a queryset",
}


def refuse_names(model: type[models.Model], names: Iterable[str] | None, where: str) -> None:
    """Raise ClaimColumnError if *names* holds a claim column."""
    wrong = sorted(claim_columns(model).guarded_names.intersection(names or ()))
    if wrong:
        raise ClaimColumnError(
            f"{where} names {', '.join(wrong)} of {model._meta.label}: claim columns are written by the verbs alone"
            f" (claim_batch, complete, fail, release, renew, reset, pause_rows, resume_rows)."
        )


def refuse_assigned(row: models.Model) -> None:
    """Raise ClaimColumnError if a claim column of a stored row was assigned since it was loaded."""
    if not is_stored(row):
        return
    own, columns = row.__dict__, claim_columns(type(row))
    names, values, since = own[LOADED]
    known = {**dict(zip(names, values, strict=False)), **since}
    for field in columns.guarded:
        name = field.attname
        stored = known.get(name, models.DEFERRED)
        if name in own and (stored is models.DEFERRED or _differs(stored, own[name])):
            verb = _VERB_FOR.get(own[name]) if field is columns.status else None
            raise ClaimColumnError(
                f"{row._meta.label} {row.pk!r}: {field.name} was set to {own[name]!r}, but claim columns are written"
                f" by the verbs alone; use {verb or 'one of the verbs'}."
            )


def _differs(known: object, value: object) -> bool:
    """Compare as an export, a form or a spreadsheet keeps values: whole seconds, and no NULL beside an empty text."""
    if known == value or (not known and value in ("", None)):
        return False
    if isinstance(known, datetime) and isinstance(value, datetime) and not value.microsecond:
        return as_utc(known).replace(microsecond=0) != as_utc(value)
    return True


def is_stored(row: models.Model) -> bool:
    """Say whether the row was loaded, or saved before: then its values of our columns are not the user's wish."""
    return LOADED in row.__dict__


def claim_on(row: models.Model, using: str) -> Claim | None:
    """Return the claim that the instance carries, or once carried, on the very row that a save there would write."""
    claim = claim_of(row)
    if claim is None or claim.alias != using:
        return None
    columns = claim_columns(type(row))
    key = columns.key_of(row)
    if claim.pk != key:
        # The text "5" names the row 5.
        with suppress(ValidationError):
            key = columns.owner._meta.pk.to_python(key)
    return claim if claim.pk == key else None


def prepare_new_row(row: models.Model) -> None:
    """Prepare a row to be inserted: one that was loaded, or names what a claim writes, is a copy and is created open.

    Raises ClaimColumnError for a constructed row whose state is none.
    """
    columns, own, claim = claim_columns(type(row)), row.__dict__, claim_of(row)
    state = own.get(columns.status.attname, Status.OPEN)
    if state not in Status.values:
        raise ClaimColumnError(
            f"A new {row._meta.label} cannot be {state!r}, only open, paused, complete or failed."
        )
    ours = columns.guarded
    if not is_stored(row) and claim is None:
        # The code that makes a range sets its bounds.
        ours = [field for field in ours if not isinstance(field, RangeColumn)]
        initial = (columns.status, columns.not_before)
        others = [field for field in ours if field not in initial and field.attname in own]
        waits = columns.not_before.attname if columns.not_before else ""
        # A new range may have a mark.
        if isinstance(due_at := own.get(waits), datetime) and due_at not in MARKS:
            own[waits] = before_marks(due_at)
        is_default = all(own[field.attname] == field.get_default() for field in others)
        if is_default and state != Status.PROCESSING:
            return
    for field in ours:
        own[field.attname] = field.get_default()
    if claim is not None and claim.pk != columns.key_of(row):
        # A copy on another database has the same key: the instance still carries the claim of the row here.
        del own[ATTRIBUTE]
