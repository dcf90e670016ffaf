"""django-filer and easy-thumbnails: files that workers read, and thumbnails that they make."""

import io

import pytest
from django.core.files.base import ContentFile
from easy_thumbnails.models import Source
from filer.models import File, Folder, Image
from PIL import Image as Picture

from django_taskclaim.testing import run_due
from tests.third_party.app.models import Contract, FileScan, Portrait, ThumbnailAudit

pytestmark = pytest.mark.django_db


def png() -> ContentFile[bytes]:
    data = io.BytesIO()
    Picture.new("RGB", (100, 100)).save(data, "PNG")
    return ContentFile(data.getvalue(), "a.png")


def test_filers_files_have_companions_and_one_of_our_own_is_a_queue() -> None:
    folder = Folder.objects.create(name="f")
    text = File.objects.create(file=ContentFile(b"one two three", "a.txt"), folder=folder)
    Image.objects.create(file=png(), folder=folder)
    contract = Contract.objects.create(file=ContentFile(b"we agree", "c.txt"), folder=folder)
    assert FileScan.objects.populate(File.objects.all()) == 3
    (held,) = Contract.objects.claim_batch(1)
    # Somebody moves the file to another place in the library and gives it a name.
    contract.folder = Folder.objects.create(name="g")
    contract.name = "Contract"
    contract.save()
    held.claim.release()
    run_due(FileScan)
    run_due(Contract)
    scans = FileScan.objects.order_by("source").values_list("source__description", "words")
    assert [told for told, words in scans] == ["a File", "a Image", "a Contract"]
    assert (scans[0][1], scans[2][1]) == (3, 2)
    contract.refresh_from_db()
    assert (contract.words, contract.status, contract.folder.name) == (2, "complete", "g")
    text.delete()
    contract.delete()
    assert FileScan.objects.count() == 1


def test_thumbnails_are_made_by_a_worker() -> None:
    portraits = [Portrait.objects.create(image=png()) for _ in range(2)]
    run_due(Portrait)
    for portrait in portraits:
        portrait.refresh_from_db()
        assert "20x20" in portrait.small
    assert ThumbnailAudit.objects.populate(Source.objects.all()) == 2
    run_due(ThumbnailAudit)
    assert [*ThumbnailAudit.objects.values_list("thumbnails", flat=True)] == [1, 1]
    Source.objects.all().delete()
    assert ThumbnailAudit.objects.count() == 0
