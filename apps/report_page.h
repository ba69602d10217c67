// The page that write_report fills: plain HTML, one script, no library and no network.
#pragma once

namespace troupe::apps {

inline constexpr const char* kReportPage = R"html(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Troupe run</title>
<style>
  :root { --ink: #1c2330; --soft: #68738a; --line: #dfe4ec; --paper: #ffffff; --back: #f5f7fa; --curve: #2463c9; --late: #c2571a; }
  @media (prefers-color-scheme: dark) { :root { --ink: #e4e8f0; --soft: #94a0b8; --line: #333c4d; --paper: #1d2430; --back: #141a24; --curve: #6ea3ff; --late: #ff9d5c; } }
  body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
  main { max-width: 1180px; margin: 0 auto; padding: 24px; }
  h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 32px 0 12px; }
  .soft { color: var(--soft); }
  .tiles { display: flex; flex-wrap: wrap; gap: 12px; margin: 18px 0; }
  .tile { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: 10px 16px; min-width: 130px; }
  .tile b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; }
  .charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(350px, 1fr)); gap: 14px; }
  figure { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; margin: 0; padding: 10px 12px; }
  figcaption { font-size: 13px; display: flex; justify-content: space-between; }
  svg { width: 100%; height: 170px; display: block; } svg text { fill: var(--soft); font-size: 10px; }
  table { border-collapse: collapse; width: 100%; background: var(--paper); border: 1px solid var(--line); }
  th, td { text-align: left; vertical-align: top; padding: 6px 10px; border-bottom: 1px solid var(--line); font-size: 13px; }
  td.text { white-space: pre-wrap; overflow-wrap: anywhere; font-family: ui-monospace, monospace; max-width: 460px; }
  td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
  pre { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: 12px; overflow: auto; font-size: 12px; }
</style>
</head>
<body>
<main>
  <h1 id="name"></h1>
  <div class="soft" id="subtitle"></div>
  <div class="tiles" id="tiles"></div>
  <div id="sections"></div>
  <h2>Completions, early and late</h2>
  <div id="samples"></div>
  <h2>Configuration</h2>
  <pre id="config"></pre>
</main>
<script>
"use strict";
const data = /*DATA*/;
const metrics = data.metrics, first = metrics[0], last = metrics[metrics.length - 1];
const text = (tag, content, name) => { const e = document.createElement(tag); e.textContent = content; if (name) e.className = name; return e; };
const short = v => v === undefined || v === null || Number.isNaN(v) ? "–" : Math.abs(v) >= 1000 ? v.toFixed(0) : Math.abs(v) >= 0.001 || v === 0 ? String(+v.toPrecision(4)) : v.toExponential(2);
const series = key => metrics.filter(m => typeof m[key] === "number" && Number.isFinite(m[key])).map(m => [m.step, m[key]]);
const keys = [...new Set(metrics.flatMap(m => Object.keys(m)))];

function chart(key) {
  const points = series(key);
  if (points.length === 0) return null;
  const W = 360, H = 170, left = 44, right = 8, top = 8, bottom = 20;
  let [x0, x1] = [points[0][0], points[points.length - 1][0]];
  let [y0, y1] = [Math.min(...points.map(p => p[1])), Math.max(...points.map(p => p[1]))];
  if (x0 === x1) { x0 -= 1; x1 += 1; }
  if (y0 === y1) { const pad = Math.abs(y0) * 0.1 || 1; y0 -= pad; y1 += pad; }
  const X = x => left + (x - x0) / (x1 - x0) * (W - left - right), Y = y => H - bottom - (y - y0) / (y1 - y0) * (H - top - bottom);
  const path = list => list.map((p, i) => (i ? "L" : "M") + X(p[0]).toFixed(1) + " " + Y(p[1]).toFixed(1)).join("");
  const width = Math.max(1, Math.round(points.length / 12));
  const smooth = points.map((p, i) => { const w = points.slice(Math.max(0, i - width + 1), i + 1); return [p[0], w.reduce((s, q) => s + q[1], 0) / w.length]; });
  const svgns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(svgns, "svg");
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`); svg.setAttribute("role", "img"); svg.setAttribute("aria-label", key);
  const add = (tag, attributes, content) => { const e = document.createElementNS(svgns, tag); for (const a in attributes) e.setAttribute(a, attributes[a]); if (content) e.textContent = content; svg.append(e); return e; };
  for (let i = 0; i <= 3; ++i) {
    const y = y0 + (y1 - y0) * i / 3;
    add("line", { x1: left, x2: W - right, y1: Y(y), y2: Y(y), stroke: "var(--line)" });
    add("text", { x: left - 4, y: Y(y) + 3, "text-anchor": "end" }, short(y));
  }
  add("text", { x: left, y: H - 5 }, "step " + points[0][0]); add("text", { x: W - right, y: H - 5, "text-anchor": "end" }, points[points.length - 1][0]);
  if (points.length === 1) add("circle", { cx: X(points[0][0]), cy: Y(points[0][1]), r: 3, fill: "var(--curve)" });
  add("path", { d: path(points), fill: "none", stroke: "var(--curve)", "stroke-width": 1, opacity: 0.35 });
  add("path", { d: path(smooth), fill: "none", stroke: "var(--curve)", "stroke-width": 2 });
  const figure = document.createElement("figure"), caption = document.createElement("figcaption");
  caption.append(text("span", key), text("span", short(points[points.length - 1][1]), "soft"));
  figure.append(caption, svg);
  return figure;
}

document.title = "Troupe: " + data.name;
document.getElementById("name").textContent = data.name;
document.getElementById("subtitle").textContent = `${metrics.length} steps, ${((last.time_s || 0) / 60).toFixed(1)} minutes`;
const mean = (key, n) => { const s = series(key); const part = n > 0 ? s.slice(0, n) : s.slice(n); return part.length ? part.reduce((a, p) => a + p[1], 0) / part.length : undefined; };
const evaluations = series("evaluation/score");
for (const [label, value] of [
  ["reward, first ten steps", mean("reward/mean", 10)], ["reward, last ten steps", mean("reward/mean", -10)],
  ["held-out score before", evaluations.length ? evaluations[0][1] : undefined], ["held-out score now", evaluations.length ? evaluations[evaluations.length - 1][1] : undefined],
  ["loss, last step", last["loss/mean"]], ["validation loss", mean("validation/loss", -1)], ["tokens a second", mean("throughput(tps)", -10)]]) {
  if (value === undefined) continue;
  const tile = text("div", label, "tile soft"); tile.prepend(text("b", short(value))); document.getElementById("tiles").append(tile);
}
const groups = [
  ["Reward", k => /^(reward|evaluation)\//.test(k)], ["Learning", k => /^(loss|entropy|kl|validation)\//.test(k) || k === "grad_norm" || k === "lr"],
  ["Sampler against trainer, and policy age", k => /^logprob_diff\//.test(k) || /policy_age/.test(k)],
  ["Throughput and idle share by role", k => /^(throughput|mfu|idle|perf|timing|time)/.test(k) && k !== "time_s"],
  ["Rollout and buffer", k => /^(rollout|rollout_buffer|train_batch|engine)\//.test(k)], ["Other", k => !["step", "time_s"].includes(k)]];
const done = new Set();
for (const [title, wanted] of groups) {
  const charts = keys.filter(k => wanted(k) && !done.has(k)).map(k => { done.add(k); return chart(k); }).filter(c => c);
  if (charts.length === 0) continue;
  const box = text("div", "", "charts"); box.append(...charts);
  document.getElementById("sections").append(text("h2", title), box);
}
const holder = document.getElementById("samples");
if (data.samples.length === 0) holder.append(text("p", "This run recorded no completions.", "soft"));
else {
  const table = document.createElement("table"), head = document.createElement("tr");
  for (const h of ["step", "prompt", "completion", "reward", "finish"]) head.append(text("th", h));
  table.append(head);
  for (const s of data.samples) {
    const row = document.createElement("tr");
    row.append(text("td", s.step, "number"), text("td", s.prompt || "", "text"), text("td", s.completion || "", "text"),
      text("td", s.reward === null || s.reward === undefined ? "failed" : short(s.reward), "number"), text("td", s.finish_reason || ""));
    table.append(row);
  }
  holder.append(table);
}
document.getElementById("config").textContent = data.config;
</script>
</body>
</html>
)html";

}  // namespace troupe::apps
