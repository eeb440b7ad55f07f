// The explorer's three panels: what is set is computed by `formulas` and drawn anew at each drag.
(() => {
  const { settings, bounds, chart, map, start, range, short, colours, rising, signed } = widgets;
  const [ink, accent] = colours;
  const pale = "#9aa5b1";
  const falling = [...rising].reverse();
  const say = (id, words) => (document.getElementById(id).textContent = words);
  const FAR = 32768;
  const far = [...new Set(range(0, 241).map((i) => Math.round(FAR ** (i / 240))))];
  const distances = (tokens) => range(1 - tokens, tokens);

  const rope = () => {
    const { base, width, scaling: kind, factor, original, reach } = settings;
    const tokens = settings["rope-tokens"];
    const scaling = { kind, factor, original };
    for (const id of ["factor", "original"])
      for (const input of document.querySelectorAll(`#${id}-box input`))
        input.disabled = kind === "none" || (id === "original" && !["yarn", "llama3"].includes(kind));
    const before = formulas.frequencies(width, base);
    const after = formulas.frequencies(width, base, scaling);
    const two = (compute) => [
      ...(kind === "none" ? [] : [{ name: "without scaling", y: compute(before), colour: pale, dash: true }]),
      { name: kind === "none" ? "" : "with scaling", y: compute(after), colour: ink },
    ];
    const near = range(0, reach + 1);
    chart("decay", {
      x: near,
      series: two((theta) => formulas.meanProduct(theta, near)),
      xLabel: "distance (tokens)",
      yLabel: "part of its value at 0",
      yRange: [-0.4, 1],
    });
    chart("bound", {
      x: far,
      series: two((theta) => formulas.bound(theta, far)),
      xLabel: "distance (tokens)",
      yLabel: "part of its value at 0",
      xLog: 8,
      yRange: [0, 1],
    });
    const wave = (theta) => theta.map((t) => (2 * Math.PI) / t);
    const longest = Math.max(...wave(before), ...wave(after), original * factor);
    chart("waves", {
      x: range(0, width / 2),
      series: two(wave).map((one) => ({ ...one, dots: true, width: 2.4 })),
      xLabel: "pair of channels",
      yLabel: "wavelength (tokens)",
      yLog: 10,
      yRange: [1, 10 ** Math.ceil(Math.log10(longest))],
      xRange: [0, width / 2 - 1],
      marks: kind === "none" ? [] : [
        { value: original, words: `trained on ${short(original)}` },
        { value: original * factor, words: `stretched to ${short(original * factor)}` },
      ],
    });
    const at = distances(tokens);
    const product = formulas.meanProduct(after, range(0, tokens));
    map("rope-map", {
      values: at.map((d) => (d < 0 ? NaN : product[d])),
      tokens, low: -1, high: 1, ramp: signed, unit: "of the value at distance 0",
    });
    const waves = wave(after);
    const slow = waves.filter((length) => length > original).length;
    say("rope-said",
      `Waves of ${short(waves[0])} to ${short(waves[waves.length - 1])} tokens; ${slow} of ${waves.length} ` +
      `turn less than once within ${short(original)} tokens` +
      (kind === "yarn" ? `; q and k are each multiplied by ${short(formulas.attentionFactor(scaling))}.` : "."));
  };

  const alibi = () => {
    bounds("head", { max: settings.heads });
    const { heads, head } = settings;
    const tokens = settings["alibi-tokens"];
    const slopes = formulas.slopes(heads);
    const near = range(0, tokens);
    chart("slopes", {
      x: range(1, heads + 1),
      series: [
        { y: slopes, colour: pale, dots: true, width: 3.5 },
        { y: [slopes[head - 1]], x: [head], name: `head ${head}`, colour: accent, dots: true, width: 5 },
      ],
      xLabel: "head",
      yLabel: "lost per token",
      yLog: 2,
      yRange: [2 ** -8.5, 1],
      xRange: [0.5, heads + 0.5],
    });
    const lines = slopes.map((slope, i) => ({ slope, chosen: i === head - 1 }));
    lines.sort((a, b) => a.chosen - b.chosen); // the chosen one is drawn last
    chart("alibi-bias", {
      x: near,
      series: lines.map(({ slope, chosen }) => ({
        name: chosen ? `head ${head}` : "",
        y: formulas.alibi(slope, near),
        colour: chosen ? accent : pale,
        width: chosen ? 2.6 : 1,
      })),
      xLabel: "distance (tokens)",
      yLabel: "added to the score",
      yRange: [-Math.max(...slopes) * (tokens - 1), 0],
    });
    const low = -slopes[head - 1] * (tokens - 1);
    const values = formulas.alibi(slopes[head - 1], distances(tokens));
    map("alibi-map", {
      values: values.map((v, i) => (i < tokens - 1 ? NaN : v)),
      tokens, low, high: 0, ramp: falling, unit: "added to the score",
    });
    say("alibi-said",
      `Head ${head} of ${heads} loses ${short(slopes[head - 1])} a token: a key ` +
      `${short(Math.LN2 / slopes[head - 1])} tokens back weighs half of what it would.`);
  };

  const t5 = () => {
    const { count, bidirectional } = settings;
    const tokens = settings["t5-tokens"];
    const side = bidirectional ? count / 2 : count;
    bounds("max-distance", { min: Math.floor(side / 2) + 1 });
    const options = { count, bidirectional, maxDistance: settings["max-distance"] };
    const edge = Math.ceil(options.maxDistance * 1.25);
    const wide = range(bidirectional ? -edge : -Math.ceil(edge / 8), edge + 1);
    const starts = formulas.thresholds(side, options.maxDistance);
    chart("buckets", {
      x: wide,
      series: [{ y: formulas.buckets(wide, options), colour: ink }],
      step: true,
      xLabel: "distance, query \u2212 key (tokens)",
      yLabel: "bucket",
      yRange: [0, count],
    });
    const values = formulas.buckets(distances(tokens), options);
    map("t5-map", {
      values: values.map((v, i) => (!bidirectional && i < tokens - 1 ? NaN : v)),
      tokens, low: 0, high: count - 1, ramp: rising, unit: "(the bucket)",
    });
    const alone = starts.filter((s, i) => i + 1 < starts.length && starts[i + 1] === s + 1).length;
    say("t5-said",
      `${side} buckets${bidirectional ? " a side" : ""}; distances up to ${alone} have one each, ` +
      `and from ${short(starts[starts.length - 1])} on all share the last.`);
  };

  start({ rope, alibi, t5 });
})();
