"""The measurement of admissions under quota measures what it says, with all its keys; how fast it is, is not tested."""

from lab.bench.quota import QuotaBench, bench_quota


async def test_a_short_run_has_every_figure() -> None:
    bench = QuotaBench(namespaces=2, rate=20, seconds=0.5, burst_seconds=0.2, size_rate=20, size_seconds=0.5)
    figures = await bench_quota(bench)
    assert {"p50_ms", "p99_ms", "per_second", "admissions_per_write", "largest_record_bytes"} <= figures.keys()
    assert figures["calls"] == 10
    largest = figures["largest_record_bytes"]
    assert isinstance(largest, int)
    assert 0 < largest < 256 * 1024
