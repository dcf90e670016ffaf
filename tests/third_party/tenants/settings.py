"""A project of django-tenants: each customer has a schema of its own."""

import os

import dj_database_url

DATABASES = {
    "default": dj_database_url.parse(os.environ["TENANTS_DATABASE_URL"])
    | {"ENGINE": "django_tenants.postgresql_backend"}
}
DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]
SHARED_APPS = ["django_tenants", "tests.third_party.tenants.customers"]
TENANT_APPS = [
    "django.contrib.contenttypes",
    "django_taskclaim",
    "django_taskclaim.control",
    "tests.third_party.tenants.app",
]
INSTALLED_APPS = [*SHARED_APPS, *TENANT_APPS]
TENANT_MODEL = "customers.Customer"
TENANT_DOMAIN_MODEL = "customers.Domain"
SECRET_KEY = "used by tests only"
USE_TZ = True
