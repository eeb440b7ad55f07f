# ruff: noqa: F401, I001
"""Every scheme by the name that configs use, one line each, in the order of tables.

`registry.ENCODINGS` is made of these.
"""

from pe_jax.encodings.base import Encoding as nope
from pe_jax.encodings.sinusoidal import Sinusoidal as sinusoidal
from pe_jax.encodings.learned import Learned as learned
from pe_jax.encodings.shaw import Shaw as shaw
from pe_jax.encodings.transformer_xl import TransformerXL as transformer_xl
from pe_jax.encodings.t5 import T5 as t5
from pe_jax.encodings.buckets import Buckets as buckets
from pe_jax.encodings.buckets import Clipped as clipped
from pe_jax.encodings.deberta import DeBERTa as deberta
from pe_jax.encodings.rope import RoPE as rope
from pe_jax.encodings.lerope import LeRoPE as lerope
from pe_jax.encodings.rope_pp import RoPEPP as rope_pp
from pe_jax.encodings.rope_heads import RoPEHeads as rope_heads
from pe_jax.encodings.pope import PoPE as pope
from pe_jax.encodings.fope import FoPE as fope
from pe_jax.encodings.rotated_values import RotatedValues as rotated_values
from pe_jax.encodings.xpos import XPos as xpos
from pe_jax.encodings.key_offset import PartialKeyOffset as key_offset
from pe_jax.encodings.temperature import Temperature as temperature
from pe_jax.encodings.log_length import LogLength as log_length
from pe_jax.encodings.alibi import ALiBi as alibi
from pe_jax.encodings.fox import FoX as fox
from pe_jax.encodings.cable import CABLE as cable
from pe_jax.encodings.wall import Wall as wall
from pe_jax.encodings.selective_rope import SelectiveRoPE as selective_rope
from pe_jax.encodings.repo import RePo as repo
from pe_jax.encodings.tapa import TAPA as tapa
from pe_jax.encodings.grape_ap import GRAPEAP as grape_ap
from pe_jax.encodings.path import PaTH as path
from pe_jax.encodings.wavlm import WavLM as wavlm
from pe_jax.encodings.inkling import Inkling as inkling
from pe_jax.encodings.sink import SinkLogit as sink
from pe_jax.encodings.rerope import ReRoPE as rerope
from pe_jax.encodings.self_extend import SelfExtend as self_extend
from pe_jax.encodings.dual_chunk import DualChunk as dual_chunk
from pe_jax.encodings.cope import CoPE as cope
from pe_jax.encodings.stick_breaking import StickBreaking as stick_breaking
from pe_jax.encodings.dape import DAPE as dape
from pe_jax.encodings.sinusoidal_2d import Sinusoidal2D as sinusoidal_2d
from pe_jax.encodings.learned_2d import Learned2D as learned_2d
from pe_jax.encodings.learned_grid import LearnedGrid as learned_grid
from pe_jax.encodings.rope_2d import RoPE2D as rope_2d
from pe_jax.encodings.rope_mixed import RoPEMixed as rope_mixed
from pe_jax.encodings.cayley_string import CayleyString as cayley_string
from pe_jax.encodings.liere import LieRE as liere
from pe_jax.encodings.prope import PRoPE as prope
from pe_jax.encodings.rayrope import RayRoPE as rayrope
from pe_jax.encodings.rope_nd import RoPEND as rope_nd
from pe_jax.encodings.rope_inner import RoPEInner as rope_inner
from pe_jax.encodings.mrope import MRoPE as mrope
from pe_jax.encodings.swin import Swin as swin
from pe_jax.encodings.cpb import CPB as cpb
from pe_jax.encodings.layoutlmv3 import LayoutLMv3 as layoutlmv3
from pe_jax.encodings.alibi_2d import ALiBi2D as alibi_2d
from pe_jax.encodings.kerple import KERPLE as kerple
from pe_jax.encodings.sandwich import Sandwich as sandwich
from pe_jax.encodings.fire import FIRE as fire
from pe_jax.encodings.dpb import DPB as dpb
from pe_jax.encodings.tupe import TUPE as tupe
from pe_jax.encodings.bipe import BiPE as bipe
