from oscar.apps.catalogue import apps


class CatalogueConfig(apps.CatalogueConfig):
    name = "tests.third_party.catalogue"
