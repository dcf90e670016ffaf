"""A shop of django-oscar whose forked products are a queue, and whose categories have a companion."""

from typing import Any

import pytest
from oscar.apps.basket.models import Basket
from oscar.apps.catalogue.categories import create_from_breadcrumbs
from oscar.apps.partner.strategy import Default
from oscar.core.loading import get_model
from oscar.test.factories import create_product

from django_taskclaim.testing import run_due
from tests.third_party.app.models import CategoryReport

pytestmark = pytest.mark.django_db

Category: Any = get_model("catalogue", "Category")
Product: Any = get_model("catalogue", "Product")


def test_products_are_sold_and_worked_on_and_categories_move() -> None:
    books = create_from_breadcrumbs("Books > Novels").get_parent()
    product = create_product(title="Emma", price=10, num_in_stock=3)
    product.description = "a long novel"
    product.save()
    product.categories.add(books)
    (held,) = Product.objects.browsable().claim_batch(1)
    # It is sold and changed in the shop while it is worked on.
    basket = Basket.objects.create()
    basket.strategy = Default()
    basket.add_product(product, quantity=2)
    product.title = "Emma, 1815"
    product.save()
    held.words = 99
    held.claim.complete(update_fields=["words"])
    product.refresh_from_db()
    assert (product.title, product.words, product.claim_status) == ("Emma, 1815", 99, "complete")
    Product.objects.reset(complete=True)
    assert CategoryReport.objects.populate(Category.objects.all()) == 2
    run_due(Product)
    run_due(CategoryReport)
    product.refresh_from_db()
    assert product.words == 3
    assert [*CategoryReport.objects.values_list("source__name", "products")] == [
        ("Books", 1),
        ("Novels", 0),
    ]
    other = Category.add_root(name="Other")
    Category.objects.get(name="Novels").move(other, "first-child")
    Category.objects.get(name="Other").delete()
    assert [*CategoryReport.objects.values_list("source__name", flat=True)] == ["Books"]
    product.delete()
    assert not Product.objects.exists()
