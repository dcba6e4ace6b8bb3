"""``make record``: parts by the product's own verbs, resumed and packed, on the simulator."""

import importlib.util
import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

# By its path: a finding's own script has the same name.
SPEC = importlib.util.spec_from_file_location("record_script", Path(__file__).parents[1] / "scripts" / "record.py")
record = sys.modules["record_script"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(record)
SMALL = ("--backend", "sim", "--quick")


def packed(folder: Path) -> list[str]:
    """Names in all members of the archive, which are compressed one behind the other."""
    data = b"".join(p.read_bytes() for p in sorted(folder.glob("record.tgz.*")))
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz", ignore_zeros=True) as archive:
        return archive.getnames()


def test_a_part_that_fails_costs_the_others_nothing_and_what_is_done_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "SANITIZER", "no-such-tool")
    words = (*SMALL, "--out", str(tmp_path / "out"), "--pack", str(tmp_path / "pack"), "--only", "memcheck,fences")
    assert record.main(list(words)) == 1
    table = json.loads((tmp_path / "out/parts.json").read_text())
    assert table["fences"]["status"] == "ok"
    assert table["memcheck"]["status"].startswith("failed")
    assert {"fences/manifest.json", "fences/samples/part-0000.parquet", "fences.log", "parts.json"} <= set(packed(tmp_path / "pack"))

    manifest = tmp_path / "out/fences/manifest.json"
    before = manifest.stat().st_mtime_ns
    assert record.main([*words[:-1], "fences"]) == 0
    assert manifest.stat().st_mtime_ns == before


def test_a_part_over_its_time_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "GRACE_S", 5.0)
    part = record.Part((("-c", "import time; time.sleep(60)"), ("-c", "raise SystemExit(0)")), limit_s=0.5)
    assert record.execute(part, tmp_path, tmp_path / "log", float("inf")) == "over its time"


def test_an_archive_goes_on_in_the_next_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "PIECE_BYTES", 300)
    out = tmp_path / "out"
    (out / "a/producers").mkdir(parents=True)
    for name in ("a/model.json", "a/report.html", "a/producers/part-0000.parquet"):
        (out / name).write_text(name * 50)
    record.pack(out, "a", True, 0.0, tmp_path / "pack")
    record.pack(out, "a", False, 0.0, tmp_path / "pack")
    assert len(list((tmp_path / "pack").iterdir())) > 1
    assert packed(tmp_path / "pack") == ["a/model.json", "a/model.json", "a/producers/part-0000.parquet"]


def test_an_unknown_part_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        record.main(["--out", str(tmp_path / "out"), "--only", "wrong"])
    assert "no part wrong" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
