"""A language model as its own config.json says it (field names of Hugging Face): what its layers compute, send, and weigh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xstage_bench.errors import DataError
from xstage_bench.io.json_file import read_json
from xstage_bench.workloads.shapes import MoEShape

#: ``model_type`` of the families with the layers described here: SwiGLU, and GQA or MLA. Others would be read wrongly without a word.
FAMILIES = (
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2",
    "glm4_moe", "glm_moe_dsa", "gpt_oss", "keye_vl_2",
)  # fmt: skip
#: One expert count is written in three ways.
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: keys and values of all heads are made of one row per token.

    Parameters
    ----------
    q_rank : int or None
        Width of the queries' own latent; None: they are made of the token's row.
    kv_rank, rope : int
        Elements of a cached row: latent and rotary part.
    nope, value : int
        Elements of a head's key without its rotary part, and of its value.
    """

    q_rank: int | None
    kv_rank: int
    rope: int
    nope: int
    value: int


@dataclass(frozen=True, slots=True)
class Indexer:
    """Sparse attention's indexer: heads, elements of each, key heads, and tokens that it selects for a query."""

    heads: int
    dim: int
    selected: int
    key_heads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A decoder-only transformer.

    Parameters
    ----------
    name : str
    hidden, layers, vocabulary, positions : int
    heads, kv_heads, head_dim : int
        With `latent`, `kv_heads` is 1 and `head_dim` that of a query: the one cached row is shared by all heads.
    tied : bool
        The head has the embedding's weights.
    dense_inter : int
        Width of the SwiGLU of a layer without experts; 0 where every layer has them.
    moe : MoEShape or None
        Its layers with experts; None: a dense model.
    latent : Latent or None
    indexer : Indexer or None
    window, windowed : int
        Tokens that a query of a windowed layer sees, and such layers.
    vision : dict or None
        Values of ``vision_config``.
    """

    name: str
    hidden: int
    layers: int
    vocabulary: int
    positions: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool
    dense_inter: int
    moe: MoEShape | None
    latent: Latent | None
    indexer: Indexer | None
    window: int
    windowed: int
    vision: Mapping[str, int] | None = None

    @property
    def value_dim(self) -> int:
        """Elements of a head's output."""
        return self.latent.value if self.latent else self.head_dim

    @property
    def dense_layers(self) -> int:
        """Layers without experts."""
        return self.layers - (self.moe.layers if self.moe else 0)

    @property
    def indexer_width(self) -> int:
        """Elements of a token's queries and keys of the indexer."""
        return (self.indexer.heads + self.indexer.key_heads) * self.indexer.dim if self.indexer else 0

    @property
    def parameters(self) -> int:
        """Weights of the language model: without biases, norms, vision tower, and layers for speculation."""
        if self.latent:
            m, wide = self.latent, self.heads * self.head_dim
            queries = self.hidden * wide if m.q_rank is None else m.q_rank * (self.hidden + wide)
            attention = queries + self.hidden * (m.kv_rank + m.rope) + m.kv_rank * self.heads * (m.nope + m.value)
        else:
            attention = self.hidden * self.head_dim * (self.heads + 2 * self.kv_heads)
        attention += self.heads * self.value_dim * self.hidden
        if self.indexer:  # and one weight for each of its heads
            source = self.latent.q_rank if self.latent and self.latent.q_rank else self.hidden
            i = self.indexer
            attention += i.heads * (i.dim * source + self.hidden) + self.hidden * i.key_heads * i.dim
        total = self.layers * attention + self.dense_layers * 3 * self.hidden * self.dense_inter
        if self.moe:
            expert = 3 * self.hidden * self.moe.inter
            total += self.moe.layers * (self.moe.experts * (expert + self.hidden) + 3 * self.hidden * self.moe.shared_width)
        return total + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def words(self) -> str:
        """Say what was read, in one line."""
        kind = "MLA" if self.latent else f"GQA {self.heads}/{self.kv_heads}"
        sparse = f", {self.indexer.selected} selected tokens" if self.indexer else ""
        experts = f", {self.moe.layers} with top {self.moe.top_k} of {self.moe.experts} experts" if self.moe else ", dense"
        return f"{self.name}: {self.parameters * 1e-9:.1f}e9 weights, {kind}{sparse}, {self.layers} layers{experts}"


def load_decoder(path: Path) -> Decoder:
    """Read a model's config.json.

    Raises
    ------
    DataError
        No JSON object, an unknown family, or a field that is missing or cannot be: it is named.
    """
    config = read_json(path, dict[str, Any])
    name = str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    return decoder_of(config, name or (path.resolve().parent.name if path.stem == "config" else path.stem), str(path))


def decoder_of(config: Mapping[str, Any], name: str, where: str) -> Decoder:
    """Return the decoder of a parsed configuration; `where` names it in errors, which are those of `load_decoder`."""
    for part in ("text_config", "vision_config"):
        if not isinstance(config.get(part) or {}, dict):
            raise DataError(f"{where}: field '{part}' is {config[part]!r}", "an object")
    text = _Fields({**config, **(config.get("text_config") or {})}, where)
    family = text.raw.get("model_type")
    if family not in FAMILIES:
        what = "field 'model_type' is missing" if family is None else f"model_type {family!r} is not known"
        raise DataError(f"{where}: {what}", f"known: {', '.join(FAMILIES)}; write the one whose layers are the same")
    hidden, layers, heads = text.whole("hidden_size"), text.whole("num_hidden_layers"), text.whole("num_attention_heads")
    latent, head_dim = None, text.whole("head_dim", hidden // heads)
    if text.raw.get("kv_lora_rank") is not None or family.startswith(("deepseek", "kimi", "glm_moe_dsa")):
        q_rank = None if text.raw.get("q_lora_rank") is None else text.whole("q_lora_rank")
        sizes = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
        latent = Latent(q_rank, *(text.whole(field) for field in sizes))
        head_dim = latent.nope + latent.rope
    kv_heads = 1 if latent else text.whole("num_key_value_heads", heads)
    if heads % kv_heads:
        what = f"{where}: {heads} heads for {kv_heads} key-value heads"
        raise DataError(what, "num_attention_heads is a multiple of num_key_value_heads")
    moe = _experts(text, family, name, hidden, layers)
    windowed = _windowed(text, family, layers)
    seen = _Fields(config.get("vision_config") or {}, f"{where}, vision_config")
    tower = {f: seen.whole(f) for f in ("depth", "hidden_size", "intermediate_size", "patch_size", "spatial_merge_size") if seen.raw}
    return Decoder(
        name=name,
        hidden=hidden,
        layers=layers,
        vocabulary=text.whole("vocab_size"),
        positions=text.whole("max_position_embeddings"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        tied=bool(text.raw.get("tie_word_embeddings", False)),
        dense_inter=text.whole("intermediate_size") if moe is None or moe.layers < layers else 0,
        moe=moe,
        latent=latent,
        indexer=_indexer(text, family),
        window=text.whole("sliding_window") if windowed else 0,
        windowed=windowed,
        vision=tower or None,
    )


def _indexer(text: _Fields, family: str) -> Indexer | None:
    fields = ("index_n_heads", "index_head_dim", "index_topk")
    if family in ("deepseek_v32", "glm_moe_dsa", "keye_vl_2") or any(text.raw.get(f) is not None for f in fields):
        return Indexer(*(text.whole(f) for f in fields))
    return None


def _experts(text: _Fields, family: str, name: str, hidden: int, layers: int) -> MoEShape | None:
    """The layers with experts; which ones is said in three ways."""
    field = next((f for f in EXPERTS if text.raw.get(f) is not None), None)
    if field is None:
        if "moe" in family or family in ("mixtral", "deepseek_v3", "deepseek_v32", "kimi_k2", "gpt_oss", "keye_vl_2"):
            raise DataError(f"{text.where}: field '{EXPERTS[0]}' is missing", f"or its other names: {', '.join(EXPERTS[1:])}")
        return None
    step = text.whole("decoder_sparse_step", text.whole("moe_layer_freq", 1))
    plain = [*range(text.whole("first_k_dense_replace", 0, least=0)), *text.several("mlp_only_layers")]
    sparse = sum(i not in plain and (i + 1) % step == 0 for i in range(layers))
    if not sparse:
        return None
    # Mixtral and gpt-oss have experts only, and their width under the name of the dense layers.
    inter = text.whole("intermediate_size" if field == "num_local_experts" else "moe_intermediate_size")
    shared = text.whole("n_shared_experts", 0, least=0)
    width = text.whole("shared_expert_intermediate_size", 0, least=0)
    top_k, experts = text.whole("num_experts_per_tok"), text.whole(field)
    if top_k > experts:
        raise DataError(f"{text.where}: num_experts_per_tok is {top_k}, of {experts} experts", f"at most {field}")
    return MoEShape(
        name=name, model=name, hidden=hidden, inter=inter, experts=experts, top_k=top_k, layers=sparse, shared=shared or bool(width),
        shared_inter=width or None, grade="A", source=text.where,
    )  # fmt: skip


def _windowed(text: _Fields, family: str, layers: int) -> int:
    """Layers whose queries see a window only."""
    if kinds := text.several("layer_types"):
        if strange := [kind for kind in kinds if kind not in ("full_attention", "sliding_attention")]:
            raise DataError(f"{text.where}: layer_types has {strange[0]!r}", "full_attention and sliding_attention are known")
        return sum(kind == "sliding_attention" for kind in kinds)
    if text.raw.get("sliding_window") is None or text.raw.get("use_sliding_window") is False:
        return 0
    return layers // 2 if family == "gpt_oss" else layers


@dataclass(frozen=True, slots=True)
class _Fields:
    """Fields of a configuration, asked for one by one."""

    raw: Mapping[str, Any]
    where: str

    def whole(self, field: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number, or refuse with the field's name."""
        value = self.raw.get(field)
        value = default if value is None else value
        if value is None:
            raise DataError(f"{self.where}: field '{field}' is missing", "a complete config.json of the model has it")
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise DataError(f"{self.where}: field '{field}' is {value!r}", f"a whole number of at least {least}")
        return value

    def several(self, field: str) -> list[Any]:
        """Return a list, empty where there is none."""
        value = self.raw.get(field) or []
        if not isinstance(value, list):
            raise DataError(f"{self.where}: field '{field}' is {value!r}", "a list with an entry for each layer that it is about")
        return value
