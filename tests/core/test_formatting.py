"""Numbers, shares, durations, sizes and times as every surface writes them."""

import pytest

from dapo_core.run.formatting import ago, clock, duration, fit, number, percent, plural, size

DURATIONS = {
    0: "0s", 0.84: "0.8s", 5: "5s", 9.97: "10s", 42: "42s", 59.9: "59s", 60: "1m00s", 427: "7m07s", 599: "9m59s",
    600: "10m", 720: "12m", 3660: "1h01m", 7200: "2h00m", 7980: "2h13m", 40_000: "11h06m", 90_000: "1d01h",
    187_200: "2d04h", 424_000: "4d21h", -5: "0s",
}  # fmt: skip


@pytest.mark.parametrize(("seconds", "text"), DURATIONS.items())
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        pytest.param(clock(59.9), "00:59", id="seconds"),
        pytest.param(clock(3723), "1:02:03", id="hours"),
        pytest.param(clock(90_061), "1d 01:01", id="days"),
        pytest.param(clock(-3), "00:00", id="never below zero"),
        pytest.param(ago(None, 0), "-", id="a moment that never was"),
        pytest.param(ago(0, 42.7), "42s ago", id="an age"),
        pytest.param(number(None), "-", id="no number"),
        pytest.param(number(float("nan")), "nan", id="not a number"),
        pytest.param(number(float("-inf")), "-inf", id="infinite"),
        pytest.param(number(12345.6), "12,346", id="thousands"),
        pytest.param(number(1234.5678), "1,235", id="all digits before the point"),
        pytest.param(number(2.0), "2", id="whole"),
        pytest.param(number(0), "0", id="zero"),
        pytest.param(number(0.0412), "0.0412", id="small"),
        pytest.param(number(0.123456), "0.123", id="three digits"),
        pytest.param(number(-0.5), "\N{MINUS SIGN}0.5", id="negative"),
        pytest.param(number(5e-4, 2), "5e-4", id="a learning rate"),
        pytest.param(number(1e-6), "1e-6", id="no needless zeros"),
        pytest.param(number(2.5e10), "2.5e10", id="huge"),
        pytest.param(percent(0.0743), "7.4%", id="few percent"),
        pytest.param(percent(0.714), "71.4%", id="percent"),
        pytest.param(percent(None), "-", id="no share"),
        pytest.param(plural(1, "restart"), "1 restart", id="one"),
        pytest.param(plural(2, "restart"), "2 restarts", id="many"),
        pytest.param(plural(2, "process", "processes"), "2 processes", id="an irregular plural"),
        pytest.param(fit("abcdef", 4), "abc…", id="cut"),
        pytest.param(size(None), "-", id="no size"),
        pytest.param(size(812), "812 bytes", id="bytes"),
        pytest.param(size(1000), "1.0 kB", id="kilobytes"),
        pytest.param(size(312_000_000), "312.0 MB", id="megabytes"),
    ],
)
def test_texts(said: str, meant: str) -> None:
    assert said == meant
