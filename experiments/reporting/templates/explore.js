// The explorer's three panels: `formulas` computes the settings, and every change redraws.
(() => {
  const { settings, bounds, chart, map, start, range, short, colours, rising, signed } = widgets;
  const [ink, accent] = colours;
  const pale = "#9aa5b1";
  const falling = [...rising].reverse();
  const FAR = 32768;
  const far = [...new Set(range(0, 241).map((i) => Math.round(FAR ** (i / 240))))];
  const say = (id, words) => (document.getElementById(id).textContent = words);
  // All distances of a map of `tokens`; causal attention hides those ahead.
  const distances = (tokens) => range(1 - tokens, tokens);
  const causal = (values) => values.map((value, i) => (i < (values.length - 1) / 2 ? NaN : value));

  const allow = (ids, allowed) => {
    for (const id of ids)
      for (const input of document.querySelectorAll(`#${id}-box input`)) input.disabled = !allowed;
  };
  const decays = (two, reach) => {
    const near = range(0, reach + 1);
    const labels = { xLabel: "distance (tokens)", yLabel: "relative to its value at 0" };
    const mean = two((theta) => formulas.meanProduct(theta, near));
    const low = Math.min(-0.4, ...mean.flatMap((line) => line.y));
    chart("decay", { ...labels, x: near, series: mean, yRange: [low, 1] });
    const bound = two((theta) => formulas.bound(theta, far));
    chart("bound", { ...labels, x: far, series: bound, xLog: 8, yRange: [0, 1] });
  };
  const wave = (theta) => theta.map((t) => (2 * Math.PI) / t);
  const waves = (two, pairs, marks) => {
    const series = two(wave).map((line) => ({ ...line, dots: true, width: 2.4 }));
    const longest = Math.max(...series.flatMap((line) => line.y), ...marks.map((mark) => mark.value));
    const labels = { xLabel: "pair of channels", yLabel: "wavelength (tokens)" };
    const yRange = [1, 10 ** Math.ceil(Math.log10(longest))];
    chart("waves", { ...labels, x: range(0, pairs), series, yLog: 10, yRange, marks });
  };
  const rope = () => {
    const { base, width, scaling: kind, factor, original, reach } = settings;
    const scaling = { kind, factor, original };
    const plain = kind === "none";
    allow(["factor"], !plain);
    const before = formulas.frequencies(width, base);
    const after = formulas.frequencies(width, base, scaling);
    const without = { name: "without scaling", colour: pale, dash: true };
    const two = (compute) => [
      ...(plain ? [] : [{ ...without, y: compute(before) }]),
      { name: plain ? "" : "with scaling", y: compute(after), colour: ink },
    ];
    decays(two, reach);
    const trained = { value: original, words: `trained on ${short(original)}` };
    const goal = original * factor;
    const stretched = { value: goal, words: `stretched to ${short(goal)}` };
    waves(two, width / 2, plain || factor === 1 ? [trained] : [trained, stretched]);
    const tokens = settings["rope-tokens"];
    const values = causal(formulas.meanProduct(after, distances(tokens)));
    const unit = "of the value at distance 0";
    map("rope-map", { values, tokens, low: -1, high: 1, ramp: signed, unit });
    const lengths = wave(after);
    const slow = lengths.filter((length) => length > original).length;
    const gain = formulas.attentionFactor(scaling);
    say("rope-said",
      `Waves of ${short(lengths[0])} to ${short(lengths[lengths.length - 1])} tokens; ${slow} of ` +
      `${lengths.length} turn less than once within ${short(original)} tokens` +
      (kind === "yarn" ? `; q and k are each multiplied by ${short(gain)}.` : "."));
  };

  const slopesOf = (slopes, head) => {
    const chosen = { x: [head], y: [slopes[head - 1]], name: `head ${head}`, colour: accent };
    chart("slopes", {
      x: range(1, slopes.length + 1),
      series: [
        { y: slopes, colour: pale, dots: true, width: 3.5 },
        { ...chosen, dots: true, width: 5 },
      ],
      xLabel: "head",
      yLabel: "lost per token",
      yLog: 2,
      yRange: [2 ** -8.5, 1],
      xRange: [0.5, slopes.length + 0.5],
    });
  };
  const alibi = () => {
    bounds("head", { max: settings.heads });
    const { heads, head } = settings;
    const tokens = settings["alibi-tokens"];
    const slopes = formulas.slopes(heads);
    slopesOf(slopes, head);
    const x = range(0, tokens);
    const others = slopes.filter((_, i) => i !== head - 1);
    const line = (slope) => ({ y: formulas.alibi(slope, x), colour: pale, width: 1 });
    const shown = { ...line(slopes[head - 1]), name: `head ${head}`, colour: accent, width: 2.6 };
    const labels = { xLabel: "distance (tokens)", yLabel: "added to the score" };
    const yRange = [-Math.max(...slopes) * (tokens - 1), 0];
    chart("alibi-bias", { ...labels, x, series: [...others.map(line), shown], yRange });
    const values = causal(formulas.alibi(slopes[head - 1], distances(tokens)));
    const low = -slopes[head - 1] * (tokens - 1);
    map("alibi-map", { values, tokens, low, high: 0, ramp: falling, unit: labels.yLabel });
    say("alibi-said",
      `Head ${head} of ${heads} loses ${short(slopes[head - 1])} per token: the weight of a key ` +
      `${short(Math.LN2 / slopes[head - 1])} tokens back is halved.`);
  };

  const t5 = () => {
    const { count, bidirectional } = settings;
    const side = bidirectional ? count / 2 : count;
    bounds("max-distance", { min: Math.floor(side / 2) + 1 });
    const tokens = settings["t5-tokens"];
    const options = { count, bidirectional, maxDistance: settings["max-distance"] };
    const edge = Math.ceil(options.maxDistance * 1.25);
    const x = range(bidirectional ? -edge : -Math.ceil(edge / 8), edge + 1);
    const series = [{ y: formulas.buckets(x, options), colour: ink, step: true }];
    const labels = { xLabel: "distance, query \u2212 key (tokens)", yLabel: "bucket" };
    chart("buckets", { ...labels, x, series, yRange: [0, count] });
    const all = formulas.buckets(distances(tokens), options);
    const values = bidirectional ? all : causal(all);
    map("t5-map", { values, tokens, low: 0, high: count - 1, ramp: rising, unit: "(the bucket)" });
    const starts = formulas.thresholds(side, options.maxDistance);
    const shared = starts.findIndex((first, i) => !(starts[i + 1] <= first + 1));
    say("t5-said",
      `${side} buckets${bidirectional ? " per side" : ""}; distances up to ${starts[shared] - 1} have one each, ` +
      `and from ${short(starts[starts.length - 1])} on all share the last.`);
  };

  start({ rope, alibi, t5 });
})();
