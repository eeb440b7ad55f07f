// The widgets of the explorer's page: controls, charts, and maps of query by key.
const widgets = (() => {
  const get = (id) => document.getElementById(id);
  const { colours, rising, signed } = Object.fromEntries(
    Object.entries(document.body.dataset).map(([name, list]) => [name, list.split(" ")]),
  );
  const range = (start, end) => Array.from({ length: end - start }, (_, i) => start + i);
  const text = (value) => String(value).replace("-", "\u2212");
  const number = (value, options) => text(value.toLocaleString("en", options));
  // Three digits, more from 1,000 on; tiny values are rounding errors and shown as 0.
  const short = (value) => {
    const kept = Math.abs(value) < 1e-12 ? 0 : Number(value.toPrecision(3));
    return number(Math.abs(kept) >= 1000 ? Math.round(value) : kept, { maximumSignificantDigits: 12 });
  };
  const brief = (value) => (value < 1e5 ? short(value) : number(value, { notation: "compact" }));

  // Controls: a slider and a field of numbers hold one value; logarithmic sliders hold its log2.
  const settings = {}; // by id
  let panels = {}; // by id of their section: what draws them
  const changed = (input) => panels[input.closest("section").id]();
  const pair = (box) => {
    const [slider, field] = box.querySelectorAll("input");
    const log = "log" in box.dataset;
    const [into, back] = log ? [(v) => 2 ** v, Math.log2] : [Number, Number];
    const keep = (value) => {
      const [low, high, step] = [field.min, field.max, field.step].map(Number);
      const whole = low + Math.round((value - low) / step) * step;
      settings[field.id] = Math.min(Math.max(whole, low), high);
      slider.min = back(low);
      slider.max = back(high);
      slider.value = back(settings[field.id]);
      slider.setAttribute("aria-valuetext", settings[field.id]);
      return settings[field.id];
    };
    slider.addEventListener("input", () => {
      const before = settings[field.id];
      const moved = Math.sign(Number(slider.value) - back(before));
      const value = into(Number(slider.value));
      const fine = log && slider.step !== "1"; // whole steps are powers of two, and stay exact
      const now = keep(fine ? Number(value.toPrecision(3)) : value);
      field.value = now === before ? keep(before + moved * Number(field.step)) : now;
      changed(field);
    });
    field.addEventListener("change", () => {
      field.value = keep(field.value === "" ? settings[field.id] : Number(field.value));
      changed(field);
    });
    keep(Number(field.value));
    return { field, keep };
  };
  const controls = Object.fromEntries(
    [...document.querySelectorAll(".control:not(.plain)")].map(pair).map((control) => [control.field.id, control]),
  );
  for (const field of document.querySelectorAll("select, input[type=checkbox]")) {
    const read = () => (settings[field.id] = field.type === "checkbox" ? field.checked : field.value);
    field.addEventListener("change", () => {
      read();
      changed(field);
    });
    read();
  }
  const bounds = (id, limits) => {
    const { field, keep } = controls[id];
    Object.assign(field, limits);
    field.value = keep(Number(field.value));
  };

  // Charts. `series`: { name, x, y, colour, width, dots, dash, step }; `drawn` keeps what was drawn.
  const drawn = {};
  const box = { height: 280, left: 70, right: 26, top: 14, bottom: 44 }; // pixels, as on the screen
  const make = (parent, name, fields, words) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(fields)) made.setAttribute(key, value);
    if (words !== undefined) made.textContent = words;
    return parent.appendChild(made);
  };
  const ticks = (low, high, log) => {
    if (log) {
      const power = Math.ceil((high - low) / Math.log2(log) / 6) * Math.log2(log);
      const first = Math.ceil(low / power - 1e-9);
      return range(0, Math.floor(high / power + 1e-9) - first + 1).map((i) => (first + i) * power);
    }
    const rough = (high - low) / 5;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= rough);
    const first = Math.ceil(low / step - 1e-9);
    return range(0, Math.floor(high / step + 1e-9) - first + 1).map((i) => (first + i) * step);
  };
  // An axis: from values to pixels; `log` is the base of its ticks, if it is logarithmic.
  const axis = ([low, high], from, to, log) => {
    const scaled = log ? Math.log2 : Number;
    const [a, b] = [scaled(low), scaled(high)];
    const along = (value) => from + ((value - a) / (b - a || 1)) * (to - from);
    const place = (value) => along(scaled(value));
    const label = (tick) => (log && tick < 0 ? `1/${2 ** -tick}` : brief(log ? 2 ** tick : tick));
    const at = ticks(a, b, log).map((tick) => [along(tick), label(tick)]);
    return { place, at };
  };
  // Grid lines, axes and their labels.
  const frame = (svg, width, across, up, { xLabel, yLabel }) => {
    const { height, left, right, top, bottom } = box;
    const [end, floor] = [width - right, height - bottom];
    for (const [y, words] of up.at) {
      make(svg, "path", { class: "grid", d: `M${left},${y}H${end}` });
      make(svg, "text", { x: left - 7, y: y + 4, "text-anchor": "end" }, words);
    }
    for (const [x, words] of across.at) {
      make(svg, "path", { class: "tick", d: `M${x},${floor}v5` });
      make(svg, "text", { x, y: floor + 18, "text-anchor": "middle" }, words);
    }
    make(svg, "path", { class: "tick", d: `M${left},${floor}H${end}` });
    make(svg, "text", { x: (left + end) / 2, y: height - 6, "text-anchor": "middle" }, xLabel);
    const turned = `translate(9 ${(floor + top) / 2}) rotate(-90)`;
    make(svg, "text", { transform: turned, "text-anchor": "middle" }, yLabel);
  };
  // A labelled horizontal line: { value, words }.
  const level = (svg, width, up, { value, words }) => {
    const y = up.place(value);
    if (y < box.top) return;
    make(svg, "path", { class: "mark", d: `M${box.left},${y}H${width - box.right}` });
    make(svg, "text", { x: box.left + 5, y: y - 4 }, words);
  };
  const line = (svg, points, { colour, width = 1.8, dots, dash, step }) => {
    if (dots) {
      for (const [cx, cy] of points) make(svg, "circle", { cx, cy, r: width, fill: colour });
      return;
    }
    const join = ([x, y], i) => (i === 0 ? `M${x},${y}` : step ? `H${x}V${y}` : `L${x},${y}`);
    const fields = { class: "series", d: points.map(join).join("") };
    const dashes = dash ? { "stroke-dasharray": "5 4" } : {};
    make(svg, "path", { ...fields, ...dashes, stroke: colour, "stroke-width": width });
  };
  const name = ({ name: words, colour }) => {
    const item = document.createElement("span");
    item.style.setProperty("--c", colour);
    item.textContent = words;
    return item;
  };
  const chart = (id, { x, series, xLog, yLog, xRange, yRange, marks = [], ...labels }) => {
    const svg = get(id);
    const width = Math.max(svg.clientWidth, 240);
    const across = axis(xRange ?? [x[0], x[x.length - 1]], box.left, width - box.right, xLog);
    const up = axis(yRange, box.height - box.bottom, box.top, yLog);
    svg.setAttribute("viewBox", `0 0 ${width} ${box.height}`);
    svg.replaceChildren();
    frame(svg, width, across, up, labels);
    for (const mark of marks) level(svg, width, up, mark);
    for (const curve of series) {
      const at = curve.x ?? x;
      line(svg, curve.y.map((value, i) => [across.place(at[i]), up.place(value)]), curve);
    }
    svg.nextElementSibling.replaceChildren(...series.filter((curve) => curve.name).map(name));
    drawn[id] = { x, series, yRange };
  };

  // Maps: one square per pair of tokens, by a function of their distance; NaN is white.
  const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const paint = (ramp, part) => {
    const at = Math.min(Math.max(part, 0), 1) * (ramp.length - 1);
    const i = Math.min(Math.floor(at), ramp.length - 2);
    const [a, b] = [ramp[i], ramp[i + 1]].map(channels);
    return a.map((value, c) => value + (at - i) * (b[c] - value));
  };
  // [column, row] of the square under the pointer.
  const pixel = (canvas, { clientX, clientY }) => {
    const { left, top, width, height } = canvas.getBoundingClientRect();
    const parts = [(clientX - left) / width, (clientY - top) / height];
    return parts.map((part) => Math.min(Math.max(Math.floor(part * canvas.width), 0), canvas.width - 1));
  };
  const map = (id, { values, tokens, low, high, ramp, unit }) => {
    const canvas = get(id);
    canvas.width = canvas.height = tokens;
    const context = canvas.getContext("2d");
    const image = context.createImageData(tokens, tokens);
    const shade = (value) => paint(ramp, (value - low) / (high - low || 1));
    const colours = values.map((value) => (Number.isNaN(value) ? [255, 255, 255] : shade(value)));
    for (const query of range(0, tokens))
      for (const key of range(0, tokens))
        image.data.set([...colours[query - key + tokens - 1], 255], 4 * (query * tokens + key));
    context.putImageData(image, 0, 0);
    drawn[id] = { values, tokens };
    const said = canvas.nextElementSibling;
    said.querySelector(".bar").style.background = `linear-gradient(to right, ${ramp.join(", ")})`;
    const scale = `${short(low)} to ${short(high)} ${unit}`;
    const say = (words) => (said.querySelector("output").textContent = words);
    say(scale);
    canvas.onpointerleave = () => say(scale);
    canvas.onpointermove = (event) => {
      const [key, query] = pixel(canvas, event);
      const value = values[query - key + tokens - 1];
      const shown = Number.isNaN(value) ? "hidden by the mask" : short(value);
      say(`query ${query}, key ${key}: ${shown}`);
    };
  };
  const start = (draws) => {
    panels = draws;
    const all = () => Object.values(panels).forEach((draw) => draw());
    all();
    addEventListener("resize", all);
  };
  return { settings, bounds, chart, map, start, drawn, box, range, short, colours, rising, signed };
})();
