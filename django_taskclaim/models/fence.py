"""What ``save()`` and ``delete()`` of a claimable row may do: never write a claim column, never pass a lost claim."""

from collections.abc import Iterable
from typing import Any, Self

from django.db import models, router, transaction
from django.db.models.lookups import Exact

from django_taskclaim import querysets
from django_taskclaim.columns import claim_columns
from django_taskclaim.exceptions import ClaimColumnError, ClaimLost
from django_taskclaim.guard import (
    NEVER_INSERTED,
    assigned,
    check_birth,
    claim_on,
    is_copy,
    is_stored,
    names_its_state,
    prepare_birth,
    prepare_copy,
    refuse_assigned,
    refuse_names,
    remember,
    remember_loaded,
    remember_named,
)
from django_taskclaim.states import Status
from django_taskclaim.tokens import Claim, claim_of

#: The arguments of ``save()`` in order; Django 5.2 still takes them by position.
_SAVE_OPTIONS = ("force_insert", "force_update", "using", "update_fields")


class FencedModel(models.Model):
    """Base of the mixins. It hooks into the methods that Django documents for no one but that all saving goes through.

    ``save_base`` is no place for it, because fixtures call that one unbound, past any override.
    """

    class Meta:
        abstract = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if kwargs:
            remember_named(self, kwargs)

    @classmethod
    def from_db(
        cls, db: str | None, field_names: Iterable[str], values: Any, **kwargs: Any
    ) -> Self:
        row = super().from_db(db, field_names, values, **kwargs)  # type: ignore[arg-type]
        remember_loaded(row, field_names, values)
        return row

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
        from_queryset: Any = None,
    ) -> None:
        """Django's ``refresh_from_db``; the claim that the instance carries stays what it was."""
        names = None if fields is None else set(fields)
        if from_queryset is None and claim_of(self) is not None:
            from_queryset = _all_rows(type(self), using, instance=self)
        super().refresh_from_db(using, None if names is None else list(names), from_queryset)
        guarded = claim_columns(type(self)).guarded
        remember(self, [f.attname for f in guarded if names is None or names & {f.name, f.attname}])

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Django's ``save``, without the claim columns and fenced while the row carries a claim.

        Raises ClaimColumnError before any SQL where a claim column was assigned or named, and ClaimLost where the
        claim stands no more; then nothing was written and the caller's transaction must be rolled back.
        """
        options = dict(zip(_SAVE_OPTIONS, args, strict=False)) | kwargs
        refuse_names(type(self), options.get("update_fields"), "update_fields of save()")
        if is_copy(self):
            prepare_copy(self)
            if assigned(self) is not None:
                # An UPDATE of a row that has the new key after all would drop it without a word.
                options["force_insert"] = self._only_insert(options)
        else:
            refuse_assigned(self)
        if options.get("update_fields") is None and names_its_state(self):
            options["force_insert"] = self._only_insert(options)
        if options.get("force_insert"):
            self._refuse_claimed_key(options.get("using"))
        self._save_fenced(options)
        remember(self, [field.attname for field in claim_columns(type(self)).guarded])

    def _save_fenced(self, options: dict[str, Any]) -> None:
        columns = claim_columns(type(self))
        if not type(self)._meta.concrete_model._meta.parents:  # type: ignore[union-attr]
            super().save(**options)
            return
        # Several tables are saved, ours not always first or at all: so the token is locked before them.
        alias = options.get("using") or router.db_for_write(type(self), instance=self)
        claim = claim_on(self, alias, columns.key_of(self))
        with transaction.atomic(using=alias, savepoint=False):
            stands = claim is None or claim.ended or querysets.fencing.lock_claim(self, alias)
            if stands:
                super().save(**options)
        if not stands:
            querysets.losses.raise_lost([self], [])

    def _only_insert(self, options: dict[str, Any]) -> Any:
        """Return ``force_insert`` for a row that names its state: an UPDATE would drop that without a word."""
        if options.get("force_update"):
            raise ClaimColumnError(
                f"{self._meta.label} {self.pk!r} names a claim column, so it can only be inserted as a new row;"
                f" on a row that exists the verbs alone write them."
            )
        if not is_stored(self):
            check_birth(self)
        # The parents too, if one of them has our columns.
        return options.get("force_insert") or (claim_columns(type(self)).owner,)

    def _refuse_claimed_key(self, using: str | None) -> None:
        alias = using or router.db_for_write(type(self), instance=self)
        if claim_on(self, alias, claim_columns(type(self)).key_of(self)) is not None:
            raise ClaimLost([self], reason=NEVER_INSERTED)

    def _save_table(self, raw: bool = False, cls: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._state.taskclaim_raw = raw  # type: ignore[attr-defined]
        return super()._save_table(raw, cls, *args, **kwargs)  # type: ignore[misc]

    def _do_update(  # type: ignore[override]
        self,
        base_qs: Any,
        using: str,
        pk_val: Any,
        values: Any,
        update_fields: Any,
        forced_update: Any,
        # Django 6.1 adds the fields to return, and returns their values instead of True.
        *returning: Any,
    ) -> Any:
        columns = claim_columns(type(self))
        update: Any = super()._do_update
        raw = self._state.taskclaim_raw  # type: ignore[attr-defined]
        if not raw and claim_on(self, using, columns.key_of(self)) is not None:
            base_qs = _all_rows(base_qs.model, using)
        if base_qs.model is not columns.owner or raw:
            return update(base_qs, using, pk_val, values, update_fields, forced_update, *returning)
        guarded = set(columns.guarded)
        values = [entry for entry in values if entry[0] not in guarded]
        claim = claim_on(self, using, pk_val)
        if claim is None or claim.ended:
            found = update(base_qs, using, pk_val, values, update_fields, forced_update, *returning)
            if not found and claim is not None:
                raise ClaimLost([self], reason=NEVER_INSERTED)
            return found
        if values:
            found = update(
                _fenced(base_qs, claim),
                using,
                pk_val,
                values,
                update_fields,
                forced_update,
                *returning,
            )
            if found:
                return found
        # Nothing of this table to write, or a server that does not count a row written with its old values.
        if not querysets.fencing.lock_claim(self, using):
            querysets.losses.raise_lost([self], [])
        return [()]

    def _do_insert(
        self, manager: Any, using: str, fields: Any, returning_fields: Any, raw: bool
    ) -> Any:
        columns = claim_columns(type(self))
        if manager.model is columns.owner and not raw:
            if claim_on(self, using, self._get_pk_val(columns.owner._meta)) is not None:
                raise ClaimLost([self], reason=NEVER_INSERTED)
            prepare_birth(self)
        insert: Any = super()._do_insert  # type: ignore[misc]
        inserted = insert(manager, using, fields, returning_fields, raw)
        querysets.waking.call_workers(manager.model, using)
        return inserted

    def delete(
        self, using: str | None = None, keep_parents: bool = False
    ) -> tuple[int, dict[str, int]]:
        """Django's ``delete``, fenced while the row carries a claim; deleting the row ends it.

        Raises ClaimLost where the claim stands no more; nothing was deleted and the caller's transaction stays usable.
        Where the answer to its COMMIT was lost, the instance keeps its key and its claim, and the call may be repeated:
        CommitUndecided then means that the row is gone, or another's.
        """
        alias = using or router.db_for_write(type(self), instance=self)
        claim, key = claim_on(self, alias, claim_columns(type(self)).key_of(self)), self.pk
        if claim is None or claim.ended:
            return super().delete(using, keep_parents)
        stands = False
        try:
            with transaction.atomic(using=alias):
                stands = querysets.fencing.lock_claim(self, alias)
                deleted = super().delete(using, keep_parents) if stands else (0, {})
        except BaseException:
            # Django has taken the key away already, and without it nothing could be repeated.
            if stands and self.pk != key:
                self.pk, claim.unanswered = key, True
            raise
        if not stands:
            claim.undecided = claim.undecided or claim.unanswered
            querysets.losses.raise_unless_all([self], [])
        claim.end()
        return deleted


def _all_rows(model: type[models.Model], using: str | None, **hints: Any) -> Any:
    """Return every row of *model*: one that is claimed may be hidden by the base manager (``base_manager_name``)."""
    return models.QuerySet(model, using=using, hints=hints)


def _fenced(rows: Any, claim: Claim) -> Any:
    """Narrow a save to the row while *claim* is still the current one."""
    columns = claim_columns(rows.model)
    rows = rows.all()
    table = rows.query.get_initial_alias()
    for field, value in (
        (columns.status, Status.PROCESSING.value),
        (columns.claimed_by, claim.token.holder),
        (columns.iteration, claim.token.iteration),
    ):
        # What filter() would add, without its cost on every save.
        rows.query.where.add(Exact(field.get_col(table), value), "AND")
    return rows
