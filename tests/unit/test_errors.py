"""Messages about unknown names, and the base classes of errors."""

from __future__ import annotations

import errno

import pytest

from efficient_attn.errors import UnsupportedError, UsageError, is_out_of_memory, make_unknown_error


def test_the_message_has_the_nearest_choice_and_the_location() -> None:
    error = make_unknown_error("mechanism", "ful", ["linear", "full"], where="suite.toml: variant")
    assert isinstance(error, UsageError)
    assert str(error) == "suite.toml: variant: unknown mechanism 'ful'; did you mean 'full'? (choices: full, linear)"


def test_without_a_near_name_all_choices_are_listed() -> None:
    many = [f"option{i}" for i in range(30)]
    text = str(make_unknown_error("thing", "zzzz", many))
    assert "did you mean" not in text
    assert all(name in text for name in many)


def test_many_choices_are_not_listed_with_a_near_one() -> None:
    text = str(make_unknown_error("thing", "option12x", [f"option{i}" for i in range(30)]))
    assert "did you mean 'option12'?" in text
    assert "choices" not in text


def test_an_empty_list_of_choices_is_reported() -> None:
    assert str(make_unknown_error("option", "x", [])) == "unknown option 'x' (choices: none)"


def test_names_of_other_types_are_formatted_as_text() -> None:
    assert "'7'" in str(make_unknown_error("key", 7, ["a"]))


@pytest.mark.parametrize(("kind", "base"), [(UsageError, ValueError), (UnsupportedError, RuntimeError)])
def test_errors_derive_from_builtin_exceptions(kind: type[Exception], base: type[Exception]) -> None:
    assert issubclass(kind, base)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), True),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"), False),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ImportError("libtorch_cpu.so: cannot open shared object file"), False),
        (ValueError("out of memory"), False),
    ],
    ids=str,
)
def test_too_little_memory_is_recognized(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) == expected
