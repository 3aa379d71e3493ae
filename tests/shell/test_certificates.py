"""A CA is published before it signs and until nothing it signed is in use; all is replaced well before its end."""

import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from trainingjob_operator.shell.certificates import (
    CA_LIFETIME,
    CA_PUBLICATION_LEAD,
    SERVING_LIFETIME,
    CertificatePair,
    Certificates,
    make_serving,
    renew,
)

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
NAMES = ("trainingjob-operator.trainingjob-system.svc", "localhost")
DAY = timedelta(days=1)


def cas(bundle: str) -> list[int]:
    return [certificate.serial_number for certificate in x509.load_pem_x509_certificates(bundle.encode())]


def is_trusted(serving: CertificatePair, bundle: str, now: datetime) -> bool:
    """Return whether a client with a bundle accepts a serving certificate at a time, as TLS would."""
    trusted = x509.load_pem_x509_certificates(bundle.encode())
    verifier = x509.verification.PolicyBuilder().store(x509.verification.Store(trusted)).time(now)
    try:
        verifier.build_server_verifier(x509.DNSName(NAMES[0])).verify(serving.x509, [])
    except x509.verification.VerificationError:
        return False
    return True


@pytest.fixture(scope="module")
def fresh() -> Certificates:
    return renew(None, NAMES, START)


def test_the_first_certificates_serve_every_name(fresh: Certificates) -> None:
    assert is_trusted(fresh.serving, fresh.bundle, START)
    names = fresh.serving.x509.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == list(NAMES)
    assert cas(fresh.bundle) == [fresh.ca.x509.serial_number]


def test_openssl_takes_them_too(fresh: Certificates, tmp_path) -> None:
    context = ssl.create_default_context(cadata=fresh.bundle)
    (tmp_path / "pair.pem").write_text(fresh.serving.key + fresh.serving.certificate)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "pair.pem")

    assert context.cert_store_stats()["x509_ca"] == 1


@pytest.mark.parametrize("later", [timedelta(0), DAY, SERVING_LIFETIME * 2 / 3 - DAY])
def test_while_all_is_fresh_nothing_changes(fresh: Certificates, later: timedelta) -> None:
    assert renew(fresh, NAMES, START + later) is fresh


def test_a_serving_certificate_is_replaced_by_the_same_ca(fresh: Certificates) -> None:
    renewed = renew(fresh, NAMES, START + SERVING_LIFETIME * 2 / 3 + DAY)

    assert renewed.serving != fresh.serving
    assert renewed.ca == fresh.ca


def test_another_name_needs_another_serving_certificate(fresh: Certificates) -> None:
    renewed = renew(fresh, ("other.ns.svc",), START)

    assert renewed == replace(fresh, serving=renewed.serving)
    assert renewed.serving != fresh.serving


WEBHOOK_NAMES = ("trainingjob-operator-webhook.trainingjob-system.svc",)


def test_the_webhook_has_a_certificate_of_the_same_ca_and_a_key_of_its_pods(fresh: Certificates) -> None:
    with_webhook = renew(fresh, NAMES, START, WEBHOOK_NAMES)

    assert with_webhook == replace(fresh, webhook=with_webhook.webhook)
    assert with_webhook.webhook is not None
    with_webhook.webhook.x509.verify_directly_issued_by(fresh.ca.x509)
    assert with_webhook.webhook.key != fresh.serving.key
    assert renew(with_webhook, NAMES, START + DAY, WEBHOOK_NAMES) is with_webhook
    assert renew(with_webhook, NAMES, START) == fresh


@pytest.mark.parametrize(
    "later",
    {
        "it is due": SERVING_LIFETIME * 2 / 3 + DAY,
        "its CA has been replaced": CA_LIFETIME + DAY,
    }.values(),
    ids=str,
)
def test_the_webhook_s_certificate_is_replaced_too(fresh: Certificates, later: timedelta) -> None:
    known = renew(fresh, NAMES, START, WEBHOOK_NAMES)
    renewed = renew(known, NAMES, START + later, WEBHOOK_NAMES)

    assert renewed.webhook not in (None, known.webhook)
    assert renewed.webhook is not None
    renewed.webhook.x509.verify_directly_issued_by(renewed.ca.x509)
    assert renewed.webhook.x509.not_valid_after_utc > START + later


BROKEN = {
    "no certificate": CertificatePair("", ""),
    "no key": CertificatePair("same", ""),
    "another's key": CertificatePair("same", "other"),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("which", ["ca", "serving"])
def test_unusable_certificate_is_recreated(fresh: Certificates, broken: CertificatePair, which: str) -> None:
    pair: CertificatePair = getattr(fresh, which)
    other = renew(None, NAMES, START)
    certificate = pair.certificate if broken.certificate == "same" else broken.certificate
    key = getattr(other, which).key if broken.key == "other" else broken.key

    renewed = renew(replace(fresh, **{which: CertificatePair(certificate, key)}), NAMES, START)

    assert is_trusted(renewed.serving, renewed.bundle, START)
    assert (renewed.ca == fresh.ca) == (which == "serving")


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_unusable_published_ca_is_recreated(fresh: Certificates, broken: CertificatePair) -> None:
    due = renew(fresh, NAMES, START + CA_LIFETIME * 2 / 3 + DAY)
    assert due.next_ca is not None
    certificate = due.next_ca.certificate if broken.certificate == "same" else "-"
    damaged = replace(due, next_ca=CertificatePair(certificate, fresh.ca.key if broken.key == "other" else ""))

    renewed = renew(damaged, NAMES, START + CA_LIFETIME * 2 / 3 + DAY)

    assert renewed.next_ca not in (None, damaged.next_ca)
    assert renewed.ca == fresh.ca


def test_an_old_ca_that_cannot_be_read_is_dropped(fresh: Certificates) -> None:
    assert renew(replace(fresh, old_cas=("rubbish",)), NAMES, START) == fresh


def test_a_new_ca_is_published_a_day_before_it_signs(fresh: Certificates) -> None:
    due = START + CA_LIFETIME * 2 / 3 + DAY
    current = renew(fresh, NAMES, START + CA_LIFETIME * 2 / 3)  # its serving certificate is long due

    published = renew(current, NAMES, due)
    assert published.next_ca is not None
    assert published.serving == current.serving
    assert len(cas(published.bundle)) == 2

    still = renew(published, NAMES, due + CA_PUBLICATION_LEAD - timedelta(minutes=1))
    assert still.ca == fresh.ca

    used = renew(still, NAMES, due + CA_PUBLICATION_LEAD)
    assert used.ca == published.next_ca
    assert used.next_ca is None
    assert is_trusted(used.serving, published.bundle, due + CA_PUBLICATION_LEAD), (
        "who has the bundle of a day ago trusts it"
    )
    assert is_trusted(still.serving, used.bundle, due + CA_PUBLICATION_LEAD), (
        "and the certificate of a minute ago is trusted"
    )


def test_an_old_ca_is_trusted_until_it_ends(fresh: Certificates) -> None:
    due = START + CA_LIFETIME * 2 / 3 + DAY
    used = renew(renew(fresh, NAMES, due), NAMES, due + CA_PUBLICATION_LEAD)

    assert fresh.ca.x509.serial_number in cas(renew(used, NAMES, START + CA_LIFETIME - DAY).bundle)
    assert fresh.ca.x509.serial_number not in cas(renew(used, NAMES, START + CA_LIFETIME + DAY).bundle)


def test_three_years_without_a_gap(fresh: Certificates) -> None:
    known, yesterday = fresh, fresh
    for day in range(1, 3 * 365):
        now = START + day * DAY
        known = renew(known, NAMES, now)

        assert is_trusted(known.serving, yesterday.bundle, now), f"day {day}: a reader one day behind trusts the server"
        assert is_trusted(yesterday.serving, known.bundle, now), f"day {day}: a server one day behind is trusted"
        assert len(cas(known.bundle)) <= 3
        yesterday = known


def test_expired_certificates_are_recreated(fresh: Certificates) -> None:
    now = START + 3 * CA_LIFETIME

    assert is_trusted((renewed := renew(fresh, NAMES, now)).serving, renewed.bundle, now)
    assert cas(renewed.bundle) == [renewed.ca.x509.serial_number]


def test_a_ca_that_ended_gives_way_to_the_published_one(fresh: Certificates) -> None:
    late = renew(fresh, NAMES, START + CA_LIFETIME - timedelta(hours=2))
    assert late.next_ca is not None

    assert renew(late, NAMES, START + CA_LIFETIME + timedelta(hours=2)).ca == late.next_ca


def test_nothing_outlives_its_ca(fresh: Certificates) -> None:
    serving = make_serving(fresh.ca, NAMES, START + CA_LIFETIME - DAY)

    assert serving.x509.not_valid_after_utc == fresh.ca.x509.not_valid_after_utc


def test_keys_are_not_in_the_text_of_a_pair(fresh: Certificates) -> None:
    assert "PRIVATE" not in repr(fresh)
