// Formulas of RoPE and its scalings, ALiBi and T5's buckets, as in pe_jax; a test in a browser
// compares each with pe_jax. All is float64; distance = query - key.
"use strict";
const formulas = (() => {
  // rope_scaling: frequencies [d/2] → frequencies; `original` is the context trained on, in tokens.
  const scalings = {
    none: (theta) => theta,
    linear: (theta, { factor }) => theta.map((t) => t / factor),
    ntk: (theta, { factor }) =>
      theta.map((t, i) => t * factor ** ((-2 * i) / (2 * theta.length - 2))),
    yarn: (theta, { factor, original }, base) => {
      const dim = 2 * theta.length;
      const channel = (turns) =>
        (dim * Math.log(original / (turns * 2 * Math.PI))) / (2 * Math.log(base));
      const low = Math.max(Math.floor(channel(32)), 0);
      let high = Math.min(Math.ceil(channel(1)), dim - 1);
      if (low === high) high += 0.001;
      return theta.map((t, i) => {
        const ramp = Math.min(Math.max((i - low) / (high - low), 0), 1);
        return (1 - ramp) * t + (ramp * t) / factor;
      });
    },
    llama3: (theta, { factor, original }) =>
      theta.map((t) => {
        const turns = (original * t) / (2 * Math.PI);
        const keep = Math.min(Math.max((turns - 1) / (4 - 1), 0), 1);
        return keep * t + ((1 - keep) * t) / factor;
      }),
  };

  // θ_i = base^(-2i/dim), scaled: radians per token.
  const frequencies = (dim, base, scaling = { kind: "none" }) => {
    const theta = Array.from({ length: dim / 2 }, (_, i) => base ** ((-2 * i) / dim));
    return scalings[scaling.kind](theta, scaling, base);
  };

  // The factor of both q and k: YaRN's 0.1·ln s + 1.
  const attentionFactor = ({ kind, factor }) =>
    kind === "yarn" ? 0.1 * Math.log(Math.max(factor, 1)) + 1 : 1;

  // E[q·R_d q]/E[q·q]: the mean of cos(d·θ_i).
  const meanProduct = (theta, distances) =>
    distances.map((d) => theta.reduce((sum, t) => sum + Math.cos(d * t), 0) / theta.length);

  // RoFormer's bound: the mean over i of |Σ_{j<i} e^{i·d·θ_j}|, relative to its value at 0.
  const bound = (theta, distances) =>
    distances.map((d) => {
      let [re, im, total] = [0, 0, 0];
      for (const t of theta) {
        re += Math.cos(d * t);
        im += Math.sin(d * t);
        total += Math.hypot(re, im);
      }
      return total / ((theta.length * (theta.length + 1)) / 2);
    });

  // ALiBi's slope of each head.
  const slopes = (heads) => {
    const lower = 2 ** (31 - Math.clz32(heads));
    const first = Array.from({ length: lower }, (_, i) => 2 ** ((-8 * (i + 1)) / lower));
    const more = Array.from({ length: heads - lower }, (_, i) => 2 ** ((-8 * (2 * i + 1)) / (2 * lower)));
    return [...first, ...more];
  };
  const alibi = (slope, distances) => distances.map((d) => -slope * Math.abs(d));

  // The first distance of T5's buckets 1, 2, … of one side, in whole numbers.
  const thresholds = (buckets, maxDistance) => {
    const exact = Math.floor(buckets / 2);
    const large = buckets - exact;
    const [e, l, m] = [exact, large, maxDistance].map(BigInt);
    const starts = Array.from({ length: Math.max(exact - 1, 0) }, (_, i) => i + 1);
    for (let j = 0; j < large; j++) {
      const goal = m ** BigInt(j) * e ** l;
      let [low, high] = [exact, maxDistance];
      while (low < high) {
        const n = Math.floor((low + high) / 2);
        if (BigInt(n) ** l * e ** BigInt(j) >= goal) high = n;
        else low = n + 1;
      }
      starts.push(low);
    }
    return starts;
  };
  const buckets = (distances, { count, maxDistance, bidirectional }) => {
    const side = bidirectional ? count / 2 : count;
    const starts = thresholds(side, maxDistance);
    return distances.map((d) => {
      const reach = bidirectional ? Math.abs(d) : Math.max(d, 0);
      const index = starts.filter((start) => reach >= start).length;
      return index + (bidirectional && d < 0 ? side : 0);
    });
  };
  return {
    frequencies, attentionFactor, meanProduct, bound, slopes, alibi, thresholds, buckets,
  };
})();
