"""Which columns a list and a change page show, and which of them a form may write.

The user's own come first, with the raw claim columns as people read them. Companions and ranges point at rows of
another table, which may have any number of them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.core.exceptions import ObjectDoesNotExist
from django.db import models
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from django_taskclaim.columns import LINK, claim_columns, has_ranges, is_companion

#: What tells of each column in the list; the first that is named brings the words.
IN_LIST: Mapping[str, str] = {
    "status": "claim_state",
    "claimed_by": "claim_holder",
    "claimed_at": "claim_holder",
    "expires_at": "claim_holder",
    "iteration": "claim_tries",
    "attempts": "claim_tries",
    "not_before": "claim_tries",
    "last_error": "claim_error",
    "error_class": "claim_error",
}

#: What a list tells of a claim: all in one column, or in several where the user has named one of these.
IN_ONE = "claim_summary"
APART = ("claim_state", "claim_holder", "claim_tries", "claim_error")

#: The columns that a page shows as they are, by their roles.
MOMENTS = ("claimed_at", "expires_at", "completed_at")

#: What a page tells of a range of keys.
RANGE_FIELDS = ("range_begins", "range_ends", "range_done_to", "range_rows")

#: What tells which source a companion is about, in a list, and on the page of one whose source is gone.
SOURCE, LOST_SOURCE = "claim_source", "claim_lost_source"

Names = Sequence[Any]


def raw_names(model: type[models.Model]) -> dict[str, str]:
    """Return the claim columns of *model* that verbs alone write: name to role."""
    columns = claim_columns(model)
    guarded = columns.guarded_names
    roles = [*IN_LIST, "completed_at"]
    found = {role: field.name for role in roles if (field := getattr(columns, role)) is not None}
    return {name: role for role, name in found.items() if name in guarded}


def page_fields(model: type[models.Model]) -> list[str]:
    """Return what a page tells of a claim."""
    columns = claim_columns(model)
    moments = [field.name for role in MOMENTS if (field := getattr(columns, role)) is not None]
    words = ["claim_state", "claim_holder", "claim_tries"]
    return [*words, *moments, *applicable(model, ["claim_error_in_full"]), "claim_timeline"]


def applicable(model: type[models.Model], names: Iterable[str]) -> list[str]:
    """Leave out what says nothing without the columns that it is about."""
    told = (
        claim_columns(model).error_class is not None or claim_columns(model).last_error is not None
    )
    return [name for name in names if told or not name.startswith("claim_error")]


def in_list(model: type[models.Model], shown: Iterable[object]) -> tuple[Any, ...]:
    """Return the columns of a list with the raw claim columns in words.

    Where the user names no claim column, one column that tells all stands beside the first, also on a phone; a
    companion's comes after the key of its source. The column of buttons is left out; it comes last, for those who may
    press them.
    """
    raw = raw_names(model)
    told = [_in_words(raw, name) for name in shown if name != "actions_holder"]
    first = 1
    if is_companion(model) and not {LINK, SOURCE} & {n for n in told if isinstance(n, str)}:
        told.insert(first, SOURCE)
        first += 1
    named = {name for name in told if isinstance(name, str)}
    if IN_ONE not in named and named.isdisjoint(APART):
        return (*told[:first], IN_ONE, *told[first:])
    apart = applicable(model, APART) if IN_ONE not in named else []
    return tuple(dict.fromkeys([*told, *apart]))


def _in_words(raw: Mapping[str, str], name: object) -> object:
    role = raw.get(name) if isinstance(name, str) else None
    return IN_LIST.get(role, name) if role is not None else name


def read_only(model: type[models.Model], admin: object, *, on_page: bool) -> list[str]:
    """Return what no form may write: every claim column that verbs alone write, and what tells of them."""
    if not on_page:
        return list(raw_names(model))
    ranges = RANGE_FIELDS if has_ranges(model) else ()
    link = fixed_link(model)
    lost = (LOST_SOURCE,) if link else ()
    return list(dict.fromkeys([*raw_names(model), *link, *lost, *ranges, *page_fields(model)]))


def without_ours(model: type[models.Model], fields: Iterable[object]) -> list[object]:
    """Leave out of the fields that Django found by itself what the claim's own part of the page tells."""
    ours = {*raw_names(model), LOST_SOURCE, *RANGE_FIELDS, *page_fields(model)}
    return [name for name in fields if isinstance(name, (list, tuple)) or name not in ours]


def with_claim(model: type[models.Model], sets: list[Any], nothing_of: set[str]) -> list[Any]:
    """Add the claim's own part to the page, without what the user has put elsewhere, or what there is *nothing_of*.

    That of a range goes before it.
    """
    left_out = {*_names_in(sets), *nothing_of}
    ranges = RANGE_FIELDS if has_ranges(model) else ()
    parts = [
        (_("Range of keys"), ranges, {}),
        (_("Claim"), page_fields(model), {"classes": ("taskclaim-claim",)}),
    ]
    return [*sets, *_without(left_out, parts)]


def naming_lost_source(sets: Iterable[Any]) -> list[Any]:
    """Return the parts of a companion's page with the key of its source in place of the source, which is gone."""
    return [
        (title, {**options, "fields": tuple(_instead(one) for one in options["fields"])})
        for title, options in sets
    ]


def _instead(line: object) -> Any:
    if isinstance(line, (list, tuple)):
        return tuple(_instead(name) for name in line)
    return LOST_SOURCE if line == LINK else line


def _without(left_out: set[str], parts: Iterable[Any]) -> Iterator[object]:
    for title, names, options in parts:
        if rest := tuple(name for name in names if name not in left_out):
            yield title, {"fields": rest, **options}


def _names_in(sets: Iterable[Any]) -> Iterator[str]:
    for _title, options in sets:
        for line in options["fields"]:
            yield from line if isinstance(line, (list, tuple)) else [line]


def app_address(app_label: str, site: str) -> str:
    """Return the address of the app's own page in the admin."""
    return reverse("admin:app_list", kwargs={"app_label": app_label}, current_app=site)


def package_buttons(admin: Any, instance: models.Model) -> Iterator[dict[str, Any]]:
    """Yield the row buttons that the user has declared by django-admin-actions itself."""
    for name in admin.actions_row:
        title = getattr(getattr(admin, name), "short_description", name)
        yield {"title": title, "path": reverse(f"admin:{name}", args=(instance.pk,))}


# Companions and ranges


def link_to_type(admin: Any) -> tuple[str, ...]:
    """Return the link to the source where a form would else offer every source there is, to be typed as a key."""
    chosen = {*admin.raw_id_fields, *admin.autocomplete_fields, *admin.radio_fields}
    return (LINK,) if LINK not in chosen and _has_form_field(admin.model) else ()


def fixed_link(model: type[models.Model]) -> tuple[str, ...]:
    """Return the link that a row which is there keeps: with another source, a row would be done that nobody did."""
    return (LINK,) if is_companion(model) else ()


def made_by_hand(model: type[models.Model]) -> bool:
    """Say whether a form can make rows: no range, which only a plan can, and no copy of a source's key."""
    return _has_form_field(model) if is_companion(model) else not has_ranges(model)


def _has_form_field(model: type[models.Model]) -> bool:
    # A wrong link is for ``manage.py check`` to tell.
    links = [field for field in model._meta.fields if is_companion(model) and field.name == LINK]
    return any(isinstance(link, models.ForeignKey) and link.editable for link in links)


def without_source(row: models.Model) -> bool:
    """Say whether the row is a companion whose source is gone."""
    if not is_companion(type(row)):
        return False
    try:
        getattr(row, LINK)
    except ObjectDoesNotExist:
        return True
    return False
