"""Which attention a model uses on which device, with its reason; and that fused attention is connected in the same way as plain
attention."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals
from jax.sharding import AbstractDevice

from bert_jax.errors import UserError
from bert_jax.hardware import VMEM
from bert_jax.model.config import ModelConfig, Resolved, Target, published
from bert_jax.model.encoder import Block, Encoder
from bert_jax.model.kernels import SAVED, dispatch
from bert_jax.model.kernels.dispatch import in_words
from bert_jax.model.kernels.fused_attention import fused_attention
from bert_jax.model.pretraining import abstract_parameters
from bert_jax.model.tokens import Layer
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.kernels import over_mesh
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.rules import ACTIVATION_RULES
from tests.model.attention_cases import columns, packed
from tests.model.lowbias32 import hashed
from tests.random_rows import TINY, largest_difference, tokens_of

CHIPS = [kind for kind in VMEM if kind not in ("TPU v2", "TPU v3")]


def chip(platform: str, kind: str) -> AbstractDevice:
    """Returns a device that is not attached."""
    return AbstractDevice(device_kind=kind, num_cores=1, platform=platform)


CPU, TPU, GPU = chip("cpu", "cpu"), chip("tpu", "TPU v5 lite"), chip("gpu", "NVIDIA H100 80GB HBM3")


def resolved(config: ModelConfig, device: AbstractDevice) -> Resolved:
    return dispatch.resolve(config, device, 2, over_mesh)


def why_plain(config: ModelConfig, device: AbstractDevice, length: int) -> str:
    """Returns why attention is plain, or "" if it is fused."""
    return dispatch.why_plain_attention(resolved(config, device), length)


def no_attention_kernel(platform: str, kind: str, length: int, head_width: int, dtype: Any) -> str | None:
    """Returns why no kernel computes rows of this length."""
    found = dispatch.no_attention_kernel(platform, kind, head_width, dtype)
    return found or dispatch.unsupported_rows(platform, kind, length, head_width, dtype)


@pytest.mark.parametrize("kind", CHIPS)
def test_published_models_use_the_fused_kernel_on_every_tpu(kind: str):
    assert jax.default_backend() == "cpu"
    for length in (64, 128, 256, 384, 512, 1024, 2048):
        assert why_plain(ModelConfig(dtype="bfloat16"), chip("tpu", kind), length) == ""


def test_plain_attention_is_chosen_on_a_cpu_without_a_mesh_and_on_request():
    reason = "since fused attention needs a TPU or GPU, and this is a cpu"
    assert why_plain(ModelConfig(), CPU, 128) == reason
    assert why_plain(ModelConfig(attention="plain"), TPU, 128) == "as set by model.attention=plain"
    without = dispatch.resolve(ModelConfig(), TPU).target
    assert (without.platform, without.attention, without.residual_norm) == ("tpu", None, None)
    assert without.no_attention == "since the kernels need a mesh, and none is set"
    with pytest.raises(UserError, match=r"model\.attention='fused' is not available: it needs a mesh, and none is set"):
        dispatch.resolve(ModelConfig(attention="fused"), TPU)


def test_an_unresolved_model_does_not_ignore_its_requested_kernel():
    model = Encoder(SHAPE)
    x, ids = jnp.ones((1, 8, 128)), jnp.ones((1, 8), jnp.int32)
    with pytest.raises(UserError, match=r"model\.attention='fused' is not available: .* none are given"):
        model.apply({"params": layers(SHAPE.num_layers)}, x, tokens_of(ids), None)


def test_too_long_rows_use_plain_attention_or_are_refused_if_the_kernel_is_requested():
    model = ModelConfig(dtype="bfloat16")
    target = resolved(model, TPU).target
    assert target.attention is not None
    assert [target.attention.computes(model, length) for length in (512, 16_384)] == [True, False]
    asked = resolved(dataclasses.replace(model, attention="fused"), TPU)
    assert asked.target.attention is not None
    with pytest.raises(UserError, match=r"lengths up to 8,192, not 16,384; set model.attention to"):
        asked.target.attention.computes(asked, 16_384)


def test_a_narrower_model_gets_kernels_that_support_it():
    """The generator of an objective, for example, is made from the model of the run."""
    model = resolved(ModelConfig(dtype="bfloat16"), TPU)
    narrow = dataclasses.replace(model, hidden_size=192, num_heads=3)
    attention, norm = narrow.target.attention, narrow.target.residual_norm
    assert attention is not None
    assert norm is not None
    assert (attention.computes(narrow, 512), norm.computes(model), norm.computes(narrow)) == (True, True, False)


def test_resolving_twice_gives_equal_models():
    one, other = (resolved(ModelConfig(), TPU) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)


def test_requesting_an_unsupported_kernel_is_refused_with_the_reason():
    expected = "model.attention='fused' is not available: .* this is a cpu; set model.attention to 'plain' or 'auto'"
    with pytest.raises(UserError, match=expected):
        resolved(ModelConfig(attention="fused"), CPU)
    with pytest.raises(UserError, match=r"model\.attention='flash' is not one of auto, fused, plain"):
        ModelConfig(attention="flash")


def test_a_left_to_right_model_uses_plain_attention_and_logs_why():
    causal = ModelConfig(dtype="bfloat16", direction="left_to_right")
    for device in (TPU, GPU):
        reason = "since the fused attention kernels do not support left-to-right masks"
        assert why_plain(causal, device, 128) == reason
        asked = dataclasses.replace(causal, attention="fused")
        expected = "model.attention='fused' is not available: .* not support left-to-right masks; set model.attention"
        with pytest.raises(UserError, match=expected):
            resolved(asked, device)
        assert why_plain(dataclasses.replace(asked, direction="both"), device, 128) == ""


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"attention": "fused", "direction": "left_to_right"}, "model.attention='fused' is not available: .* left-to-right"),
        ({"residual_norm": "fused", "norm": "rms_norm"}, "model.residual_norm='fused' is not available: .* different norm"),
        ({"attention": "fused", "residual_norm": "fused"}, ""),
        ({"direction": "left_to_right", "norm": "rms_norm"}, ""),
    ],
)
def test_a_kernel_that_no_device_has_is_refused_only_if_it_is_required(fields: dict[str, Any], says: str):
    config = ModelConfig(**fields)
    if not says:
        dispatch.require_possible(config)
        return
    with pytest.raises(UserError, match=says):
        dispatch.require_possible(config)


def test_the_widest_window_of_a_kernel_is_2048_tokens_on_each_side():
    config = ModelConfig(dtype="bfloat16", layer_types=("sliding",) * 12, sliding_radius=2_048)
    assert why_plain(config, TPU, 512) == ""
    assert "windows of up to 2,048 tokens" in why_plain(dataclasses.replace(config, sliding_radius=2_049), TPU, 512)


def test_auto_uses_the_fused_kernel_in_bfloat16_on_timed_gpus():
    assert why_plain(ModelConfig(attention="auto", dtype="bfloat16"), GPU, 512) == ""
    assert why_plain(ModelConfig(attention="fused", dtype="float32"), GPU, 512) == ""
    automatic = why_plain(ModelConfig(attention="auto", dtype="float32"), GPU, 512)
    assert "in float32 it takes 3.7 times as long as the plain path" in automatic


@pytest.mark.parametrize(
    ("capability", "reason"),
    [("8.0", None), ("10.3", None), ("7.5", "8.0 (Ampere) or later, and This GPU has 7.5"), ("gfx942", "an NVIDIA GPU")],
)
def test_a_gpu_that_cannot_multiply_bfloat16_is_refused(capability: str, reason: str | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax.Device, "device_kind", "This GPU")
    monkeypatch.setattr(jax.Device, "compute_capability", capability, raising=False)
    found = no_attention_kernel("gpu", "This GPU", 128, 64, "bfloat16")
    assert found is None if reason is None else reason in str(found)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("cpu", "cpu", 512, 64, "bfloat16"), "this is a cpu"),
        (("gpu", "NVIDIA H100", 512, 64, "float16"), "bfloat16 and float32, not float16"),
        (("gpu", "NVIDIA H100", 512, 96, "bfloat16"), "on a GPU needs a head width of 16, 32, 64 or 128, not 96"),
        (("tpu", "TPU v5", 512, 64, "float16"), "float16"),
        (("tpu", "TPU v5", 512, 96, "bfloat16"), "head width of 16, 32, 64 or a multiple of 128, not 96"),
        (("tpu", "TPU v5", 16_384, 64, "bfloat16"), "lengths up to 8,192, not 16,384"),
        (("tpu", "TPU v4", 4_096, 64, "bfloat16"), "22 MiB at length 4,096 and head width 64 in bfloat16, but a core"),
        (("tpu", "TPU v5", 8_192, 64, "float32"), "84 MiB"),
        (("tpu", "a chip to come", 4_096, 64, "bfloat16"), "has 16"),
        (("tpu", "TPU v4", 128, 64, "float32"), "chip: 32 MiB at length 128"),
    ],
)
def test_unsupported_kernels_are_refused_with_the_reason(arguments: tuple, reason: str):
    assert reason in (no_attention_kernel(*arguments) or "")


@pytest.mark.parametrize(
    ("kind", "mib"),
    [
        ("TPU v2", 16), ("TPU v3", 16), ("TPU v4", 16), ("TPU v5 lite", 128), ("TPU v5", 64), ("TPU v6 lite", 128), ("TPU7x", 64),
        ("TPU v6e", 128),
    ],
)  # fmt: skip
def test_the_vector_memory_of_a_core_limits_the_rows_on_the_chip(kind: str, mib: int):
    assert f"but a core of {kind} has {mib}" in str(no_attention_kernel("tpu", kind, 8_192, 256, "float32"))
    for length, head_width, dtype in ((512, 256, "bfloat16"), (2_048, 64, "bfloat16")):  # the first takes 16 MiB exactly
        assert no_attention_kernel("tpu", kind, length, head_width, dtype) is None


def test_the_log_has_one_line_with_the_choice_and_its_reason():
    line = "attention: plain, since fused attention needs a TPU or GPU, and this is a cpu"
    norm = "residual norm: plain, since the fused residual norm needs a TPU, and this is a cpu"
    assert in_words(resolved(ModelConfig(), CPU), [128, 512]) == f"{line}; {norm}"
    asked = "residual norm: plain, as set by model.residual_norm=plain"
    assert in_words(resolved(ModelConfig(residual_norm="plain"), CPU), [128, 512]) == f"{line}; {asked}"
    found = in_words(resolved(ModelConfig(dtype="bfloat16"), TPU), [512, 128, 16_384])
    assert found == (
        "attention: fused, scores stay on the chip (model.attention=auto, TPU v5 lite, length 128 and 512); "
        "plain, since fused attention supports lengths up to 8,192, not 16,384; "
        "residual norm: fused (model.residual_norm=auto, TPU v5 lite)"
    )


def test_the_residual_norm_kernel_follows_its_own_key():
    def why(config: ModelConfig, device: AbstractDevice) -> str:
        return resolved(config, device).target.no_residual_norm

    for asked in ("auto", "fused"):
        assert resolved(ModelConfig(residual_norm=asked), TPU).target.residual_norm is not None
        assert why(ModelConfig(residual_norm=asked), TPU) == ""
    assert why(ModelConfig(residual_norm="plain"), TPU) == "as set by model.residual_norm=plain"
    reason = "the fused residual norm needs a TPU, and this is a cpu"
    assert why(ModelConfig(), CPU) == f"since {reason}"
    expected = f"model.residual_norm='fused' is not available: {reason}; set model.residual_norm to 'plain' or 'auto'"
    with pytest.raises(UserError, match=expected):
        resolved(ModelConfig(residual_norm="fused"), CPU)
    with pytest.raises(UserError, match=r"model\.residual_norm='fast' is not one of auto, fused, plain"):
        ModelConfig(residual_norm="fast")


@pytest.mark.parametrize(("asked", "placement", "kernels"), [("auto", "post", 2), ("auto", "pre", 2), ("plain", "post", 0)])
def test_a_layer_calls_the_residual_norm_kernel_twice_or_never(asked: str, placement: str, kernels: int):
    config = dataclasses.replace(TINY, hidden_size=128, attention="plain", residual_norm=asked, norm_placement=placement)
    on_tpu = resolved(config, TPU)
    x, ids = jnp.zeros((2, 16, 128)), jnp.zeros((2, 16), jnp.int32)
    params = nn.unbox(jax.eval_shape(functools.partial(Block(config).init, jax.random.key(0)), x, tokens_of(ids), None, LAYER))

    def layer(params: Any, x: jax.Array, ids: jax.Array) -> Any:
        return Block(on_tpu).apply(params, x, tokens_of(ids), jnp.uint32(1), LAYER)

    program = str(jax.make_jaxpr(layer)(params, x, ids))
    assert program.count("pallas_call") == program.count("interpret=False") == kernels


LAYER = Layer(jnp.uint32(0))
SHAPE = dataclasses.replace(TINY, hidden_size=128, num_heads=1, attention="fused")  # a head that fills the lanes: the least work


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel of attention that computes rows of any length."""

    attend: Callable[..., Any]
    computes_long_rows: bool = False

    def computes(self, model: ModelConfig, length: int, selects: bool = False, masks: bool = False) -> bool:
        return not masks and (self.computes_long_rows or not selects)

    def rotates(self, model: ModelConfig) -> bool:
        return self.computes_long_rows

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self.attend(*arguments, **settings)


def with_kernel(config: ModelConfig, attend: Callable[..., Any], computes_long_rows: bool = False, **settings: Any) -> Resolved:
    """Returns the model with `attend` as its attention, called like `fused_attention`."""
    target = Target(attention=Kernel(functools.partial(attend, **settings), computes_long_rows))
    return Resolved(**dataclasses.asdict(config), target=target)


def layers(number: int) -> Any:
    """Returns parameters of an encoder of `SHAPE`, none of them zero."""
    random = np.random.default_rng(0)
    shapes = nn.unbox(abstract_parameters(dataclasses.replace(SHAPE, num_layers=number)))["encoder"]
    return jax.tree.map(lambda x: jnp.asarray(random.normal(0, 0.1, x.shape).astype(np.float32), jnp.float32), shapes)


def test_an_encoder_with_fused_attention_equals_the_plain_one_with_dropout():
    random, params = np.random.default_rng(1), layers(1)
    x, direction = (random.normal(size=(2, 12, 128)).astype(np.float32) for _ in range(2))
    ids = jnp.array([[1] * 5 + [2] * 4 + [0] * 3, [1] * 12])

    def outputs_and_gradients(how: str) -> Any:
        asked = dataclasses.replace(SHAPE, num_layers=1, attention=how, attention_dropout=0.3)
        config = with_kernel(asked, fused_attention, platform="gpu", interpret=True, spread=over_mesh)

        def run(params: Any) -> Any:
            last, _ = Encoder(config).apply({"params": params}, x, tokens_of(ids), jnp.uint32(1))
            return (last * direction).sum(), last

        with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(make_mesh(MeshConfig(), jax.devices()[:1])):
            return jax.jit(jax.grad(run, has_aux=True))(params)

    assert largest_difference(outputs_and_gradients("plain"), outputs_and_gradients("fused")) < 1e-5


@pytest.mark.parametrize("kind", ["full", "sliding"])
def test_a_last_layer_of_selected_tokens_equals_the_plain_one(kind: str):
    """The rows have two examples and padding; the kernel rotates queries and keys."""
    params, x = layers(1), np.random.default_rng(1).normal(size=(2, 30, 128)).astype(np.float32)
    ids, queried = packed(2, 30, 2), columns(2, 30, 9)
    modern = dataclasses.replace(SHAPE, num_layers=1, layer_types=(kind,), sliding_radius=3, positions="rotary")

    def outputs(config: ModelConfig) -> Any:
        def encode(params: Any, x: Any) -> Any:
            return Encoder(config).apply({"params": params}, x, tokens_of(ids).reading(queried), None, method="queried")

        return jax.jit(encode)(params, x)

    asked: list[Any] = []

    def kernel(qkv: Any, *arguments: Any, **settings: Any) -> Any:
        asked.append((qkv[0].shape[1], settings["radius"]))
        return fused_attention(qkv, *arguments, **settings, interpret=True)

    found = outputs(with_kernel(modern, kernel, computes_long_rows=True))
    assert asked == ([(9, None)] if kind == "full" else [(30, 3)])
    assert largest_difference(outputs(dataclasses.replace(modern, attention="plain")), found) < 1e-5


@pytest.mark.parametrize("kind", ["full", "sliding"])
def test_a_mask_of_visible_columns_holds_where_a_kernel_or_windows_would_compute_the_layer(kind: str):
    """Each token sees only itself, so a changed token changes only its own output."""
    params, x = layers(1), np.random.default_rng(1).normal(size=(1, 30, 128)).astype(np.float32)
    tokens = dataclasses.replace(tokens_of(np.ones((1, 30))), visible=jnp.eye(30, dtype=bool)[None])
    modern = dataclasses.replace(SHAPE, num_layers=1, layer_types=(kind,), sliding_radius=3, positions="rotary", attention="auto")

    def kernel(*arguments: Any, **settings: Any) -> Any:
        pytest.fail("the kernel does not know the mask")

    encode = jax.jit(lambda x: Encoder(with_kernel(modern, kernel)).apply({"params": params}, x, tokens, None)[0])
    changed = x.copy()
    changed[:, 5] *= 2
    assert np.argwhere(np.abs(encode(x) - encode(changed)).max(-1) > 0).tolist() == [[0, 5]]


def test_no_kernel_computes_a_mask_of_visible_columns():
    model = ModelConfig(dtype="bfloat16")
    for device in (TPU, GPU):
        kernel = resolved(model, device).target.attention
        assert kernel is not None
        assert not kernel.computes(model, 512, masks=True)
        asked = dataclasses.replace(model, attention="fused")
        with pytest.raises(UserError, match=r"not support the mask Tokens\.visible; set model\.attention to 'plain' or 'auto'"):
            kernel.computes(asked, 512, masks=True)


def test_only_the_tpu_kernel_computes_selected_tokens_and_only_of_long_rows():
    model = ModelConfig(dtype="bfloat16")
    for device, expected in ((TPU, [False, True, True]), (GPU, [False] * 3)):
        kernel = resolved(model, device).target.attention
        assert kernel is not None
        assert [kernel.computes(model, length, selects=True) for length in (512, 1_024, 8_192)] == expected
    asked = resolved(dataclasses.replace(model, attention="fused"), TPU)
    assert asked.target.attention is not None
    assert not asked.target.attention.computes(asked, 512, selects=True), "the plain path is accepted"


def test_the_tpu_kernel_rotates_only_by_built_in_positions():
    modern = ModelConfig(**published("modernbert-base") | {"dtype": "bfloat16"})
    for device, expected in ((TPU, True), (GPU, False)):
        kernel = resolved(modern, device).target.attention
        assert kernel is not None
        assert kernel.rotates(modern) == expected
        assert not kernel.rotates(ModelConfig(dtype="bfloat16"))
        assert not kernel.rotates(dataclasses.replace(modern, hidden_size=768, num_heads=3)), "a head of 256 fills two groups"


def test_remat_dots_saves_the_results_of_the_kernel(capsys: pytest.CaptureFixture):
    encoder = Encoder(with_kernel(dataclasses.replace(SHAPE, remat="dots"), fused_attention, interpret=True))
    x, ids = jnp.ones((1, 8, 128)), jnp.ones((1, 8), jnp.int32)
    print_saved_residuals(lambda params: encoder.apply({"params": params}, x, tokens_of(ids), None)[0].sum(), layers(2))
    assert capsys.readouterr().out.count(f"named '{SAVED}'") == 2 * 2, "a context and its sums, in each of two layers"


@pytest.mark.parametrize(("remat", "scan_layers"), [("none", True), ("full", True), ("full", False), ("dots", False)])
def test_remat_settings_apply_to_layers_and_block_cse_outside_of_loops(remat: str, scan_layers: bool):
    """XLA's common-subexpression elimination cannot see across the two loops of a forward and a backward pass."""
    config = dataclasses.replace(SHAPE, attention="plain", num_layers=1, remat=remat, scan_layers=scan_layers)
    x, ids = jnp.ones((1, 8, 128)), jnp.ones((1, 8), jnp.int32)
    program = str(jax.make_jaxpr(lambda params: Encoder(config).apply({"params": params}, x, tokens_of(ids), None)[0])(layers(1)))
    assert ("remat" in program) == (remat != "none")
    assert (f"prevent_cse={not scan_layers}" in program) == (remat != "none")
    assert ("policy=None" in program) == (remat == "full")


@pytest.mark.parametrize("positions", [None, jnp.array([[2, 5]])], ids=["everywhere", "at_positions"])
def test_attention_dropout_has_a_seed_per_layer_derived_from_the_step(positions: Any):
    """The other sites of dropout are in `tests/training/test_dropout_sites.py`."""
    config = dataclasses.replace(SHAPE, attention_dropout=0.3, num_layers=3)
    params, x, ids = layers(3), jnp.ones((1, 8, 128)), jnp.ones((1, 8), jnp.int32)

    def seeds_of(seed: Any) -> Any:
        seeds: list[Any] = []

        def record(qkv: Any, sequence_ids: Any, *, num_heads: int, dropout: Any, radius: Any, queried: Any) -> Any:
            assert (dropout.rate, num_heads) == (0.3, 1)
            seeds.append(dropout.seed)
            return qkv[0]

        encoder, variables = Encoder(with_kernel(config, record)), {"params": params}
        if positions is None:
            encoder.apply(variables, x, tokens_of(ids), seed)
        else:  # the last layer is computed by plain attention, only where a head reads it
            encoder.apply(variables, x, tokens_of(ids).reading(positions), seed, method="queried")
        return seeds

    seeds = [int(seed) for step in (1, 2) for seed in jax.jit(seeds_of)(jnp.uint32(step))]
    layers_with_kernel = range(3 if positions is None else 2)
    assert seeds == [hashed(step + 8 * layer + 1) for step in (1, 2) for layer in layers_with_kernel]
    evaluated: list[Any] = []
    jax.eval_shape(lambda: evaluated.extend(seeds_of(None)))
    assert evaluated == [None] * (len(seeds) // 2)
