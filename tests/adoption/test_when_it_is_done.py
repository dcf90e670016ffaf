"""The guard of ``docs/when-it-is-done.md`` stops a migration that would drop what is still needed."""

from typing import Any

import pytest
from django.core.management import ManagementUtility

from tests import documents
from tests.adoption.conftest import Project, shape
from tests.querysets.support import execute

TEXT = (documents.DOCS / "when-it-is-done.md").read_text(encoding="utf-8")
(GUARDED,) = documents.blocks(TEXT, "python")
#: The names of the document, and those of the app here.
NAMES = {
    '"photos", "Photo"': '"adoption", "Parcel"',
    '"photos", "0007_photo_new_path"': '"adoption", "0003_adopt_parcel_index"',
    '"photo", "old_path"': '"parcel", "address"',
}


def test_migrate_stops_with_one_sentence_and_goes_on_when_all_is_done(
    project: Project, parcel: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The column stays until the rows are complete."""
    project.adopt("adoption.Parcel", "--existing", "open")
    (source,) = GUARDED.values
    for documented, here in NAMES.items():
        assert documented in source
        source = source.replace(documented, here)
    project.write("0004_drop_address", source)
    words = ["manage.py", "migrate", "adoption", "--verbosity=0", "--skip-checks"]
    with pytest.raises(SystemExit) as ended:
        ManagementUtility(words).execute()
    assert ended.value.code == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "5 photos are not complete, so nothing was dropped" in sentence
    assert "address" in shape("adoption_parcel")[0]
    parcel.objects.complete(parcel.objects.claim_batch(100))
    project.migrate()
    assert "address" not in shape("adoption_parcel")[0]
    # The column comes back at the end without values.
    execute("DELETE FROM adoption_parcel")
