"""What is asked of compute-sanitizer, and what is said where it is not or does not end."""

import pytest

from lessons.shared import sanitizer


def test_it_is_asked_and_what_it_prints_is_given_back(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program = tmp_path / "compute-sanitizer"
    program.write_text('#!/bin/sh\necho "$@" $EXACT\necho race >&2\n')
    program.chmod(0o755)
    printed = sanitizer.printed("racecheck", ["a.out", "x"], "--report", "all", environment={"EXACT": "1"})
    assert printed == "--tool racecheck --report all a.out x 1\nrace\n"

    program.write_text("#!/bin/sh\nexec sleep 9\n")
    monkeypatch.setattr(sanitizer, "SECONDS", 0.1)
    with pytest.raises(RuntimeError, match="did not end: TimeoutExpired"):
        sanitizer.printed("racecheck", ["a.out"])
    monkeypatch.setattr(sanitizer, "compute_sanitizer", lambda: None)
    with pytest.raises(RuntimeError, match="is not here"):
        sanitizer.printed("racecheck", ["a.out"])
