"""Variables that XLA, libtpu and JAX read are judged at apply, as the libraries would."""

from typing import Any

import pytest

from tests.support.builders import spec_manifest
from trainingjob_operator.core.validation.validate import validate_job
from trainingjob_operator.core.validation.validate_env import split_flags

FINE: dict[str, tuple[str, str]] = {
    "one flag": ("XLA_FLAGS", "--xla_dump_to=/tmp/x"),
    "several flags": ("XLA_FLAGS", "  --xla_cpu_ftz=false\n--xla_gpu_autotune_level=4 "),
    "a bare truth": ("XLA_FLAGS", "--xla_cpu_enable_fast_math"),
    "a truth in capitals": ("XLA_FLAGS", "--xla_cpu_enable_fast_math=TRUE"),
    "a truth as a digit": ("XLA_FLAGS", "--xla_cpu_enable_fast_math=1"),
    "a negative number": ("XLA_FLAGS", "--xla_backend_optimization_level=-1"),
    "a fraction": ("XLA_FLAGS", "--xla_gpu_autotune_gemm_rtol=1e-3"),
    "white space inside of quotes": ("XLA_FLAGS", '--xla_dump_to="/tmp/a b" --xla_cpu_ftz=true'),
    "an empty text": ("XLA_FLAGS", "--xla_dump_to="),
    "no flag at all": ("XLA_FLAGS", ""),
    "a file of flags": ("XLA_FLAGS", "/shared/flags"),
    "another variable": ("XLA_FLAGS", "$(MORE) --xla_cpu_ftz=$(FTZ)"),
    "flags of libtpu": ("LIBTPU_INIT_ARGS", "--xla_tpu_scoped_vmem_limit_kib=98304 --xla_enable_async_all_gather"),
    "another program's flags": ("TF_XLA_FLAGS", "no flags"),
    **{f"{truth} for JAX": ("JAX_ENABLE_X64", truth) for truth in ("1", "0", "true", "False", "yes", "n", "ON", "off")},
    "a number for JAX": ("JAX_COMPILATION_CACHE_MAX_SIZE", "-1"),
    "a fraction for JAX": ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5"),
    "a choice for JAX": ("JAX_LOGGING_LEVEL", "DEBUG"),
    "a text for JAX": ("JAX_COMPILATION_CACHE_DIR", "any text"),
    "another variable for JAX": ("JAX_ENABLE_X64", "$(X64)"),
    "a variable of JAX that is no option": ("JAX_FORCE_TPU_INIT", "1"),
}


def judge(name: str, **source: Any) -> Any:
    runtime = {**spec_manifest()["runtime"], "env": [{"name": name, **source}]}
    return validate_job("a", spec_manifest(runtime=runtime))


@pytest.mark.parametrize(("name", "value"), FINE.values(), ids=FINE.keys())
def test_variables_that_libraries_accept_are_valid(name: str, value: str) -> None:
    checked = judge(name, value=value)

    assert checked.problems == ()
    assert [warning for warning in checked.warnings if "runtime.env" in warning.path] == []


def test_values_of_other_objects_are_not_judged() -> None:
    assert judge("XLA_FLAGS", configMapKeyRef={"name": "m", "key": "k"}).problems == ()


WRONG: dict[str, tuple[str, str, str]] = {
    "an en dash": ("XLA_FLAGS", "-\u2013xla_dump_to=/x", '"--xla_dump_to=/x"'),
    "an em dash": ("XLA_FLAGS", "\u2014xla_dump_to=/x", '"--xla_dump_to=/x"'),
    "a minus sign": ("XLA_FLAGS", "\u2212\u2212xla_dump_to=/x", '"--xla_dump_to=/x"'),
    "a full-width dash": ("XLA_FLAGS", "\uff0d\uff0dxla_dump_to=/x", '"--xla_dump_to=/x"'),
    "a dash inside": ("XLA_FLAGS", "--xla_backend_optimization_level=\u20111", '"--xla_backend_optimization_level=-1"'),
    "curly quotes": ("XLA_FLAGS", "\u201c--xla_dump_to=/x\u201d", '"--xla_dump_to=/x"'),
    "curly quotes around a value": ("XLA_FLAGS", "--xla_dump_to=\u2018/x\u2019", "\"--xla_dump_to='/x'\""),
    "straight quotes": ("XLA_FLAGS", '"--xla_dump_to=/x"', '"--xla_dump_to=/x"'),
    "one dash": ("LIBTPU_INIT_ARGS", "-xla_tpu_a=1", '"--xla_tpu_a=1"'),
    "three dashes": ("LIBTPU_INIT_ARGS", "---xla_tpu_a=1", '"--xla_tpu_a=1"'),
    "a comma for white space": ("XLA_FLAGS", "--xla_cpu_ftz=true,--xla_dump_to=/x", ""),
    "white space around =": ("XLA_FLAGS", "--xla_cpu_ftz = true", ""),
    "no value": ("XLA_FLAGS", "--xla_dump_to", ""),
    "text for truth": ("XLA_FLAGS", "--xla_cpu_ftz=on", '"--xla_cpu_ftz=true"'),
    "text for a number": ("XLA_FLAGS", "--xla_gpu_autotune_level=full", ""),
    "nothing for a number": ("XLA_FLAGS", "--xla_gpu_autotune_level=", ""),
    "truth for JAX": ("JAX_ENABLE_X64", "maybe", '"true", "false"'),
    "nothing for JAX": ("JAX_ENABLE_X64", "", '"true", "false"'),
    "a whole number as a fraction": ("JAX_COMPILATION_CACHE_MAX_SIZE", "1e6", '"1000000"'),
    "a size in words": ("JAX_COMPILATION_CACHE_MAX_SIZE", "1GB", ""),
    "a time in words": ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "1s", ""),
    "a choice in small letters": ("JAX_LOGGING_LEVEL", "warning", "WARNING"),
    "no choice": ("JAX_NUMPY_DTYPE_PROMOTION", "loose", ""),
}


@pytest.mark.parametrize(("name", "value", "nearest"), WRONG.values(), ids=WRONG.keys())
def test_variables_that_libraries_reject_are_rejected_at_apply(name: str, value: str, nearest: str) -> None:
    problems = judge(name, value=value).problems

    assert {problem.path for problem in problems} == {"spec.runtime.env[0].value"}
    assert [", ".join(problem.nearest) for problem in problems] == [nearest] * len(problems)


def test_flags_are_split_as_xla_splits_them() -> None:
    assert split_flags(" --a  --b='c d'\n--e=\"f g\"h ") == ["--a", "--b='c d'", '--e="f g"h']


UNKNOWN: dict[str, tuple[str, str, str]] = {
    "a misspelt flag": ("XLA_FLAGS", "--xla_dump_too=/x", "should be an XLA flag"),
    "a flag of libtpu": ("XLA_FLAGS", "--xla_tpu_enable_x=true", "Write libtpu flags to LIBTPU_INIT_ARGS"),
    "a flag given twice": ("XLA_FLAGS", "--xla_dump_to=/x --xla_dump_to=/y", "should be set only once"),
    "a misspelt variable": ("JAX_ENABLE_X46", "1", "should be a JAX variable"),
    "a variable in small letters": ("jax_enable_x64", "1", "should be a JAX variable"),
}


@pytest.mark.parametrize(("name", "value", "words"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_unknown_variables_have_a_warning(name: str, value: str, words: str) -> None:
    checked = judge(name, value=value)

    assert checked.problems == ()
    assert any(words in warning.message for warning in checked.warnings)
