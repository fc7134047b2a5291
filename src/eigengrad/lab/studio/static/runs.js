// Runs: the curves of training runs, refreshed while they are looked at, and the report.

import {COLOURS, lines} from "./chart.js";
import {get} from "./api.js";
import {element, fill} from "./dom.js";

const CURVES = [["test_error", "Test error, %"], ["train_loss", "Training loss"], ["gradient_norm", "Gradient norm"], ["train_error", "Training error, %"]];
const REFRESH = 3000;

export function runsPanel(tool, about) {
  const chosen = new Map(), list = element("ul", {class: "runs"}), charts = element("div", {class: "charts"});
  const note = element("p", {class: "soft small", role: "status"});
  const filter = element("input", {type: "text", placeholder: "filter by name", "aria-label": "Filter runs by name", on: {input: () => show()}});
  const frame = element("iframe", {title: "Report of the results folder", sandbox: "allow-same-origin"});
  const report = element("details", {class: "card", on: {toggle: () => { if (report.open) frame.src = "/report"; }}},
    element("summary", {}, "The report: every table and figure of this folder"), frame);
  let runs = [], timer = null, first = true;

  async function refresh() {
    try {
      runs = (await get("/api/runs")).runs;
      if (first && runs.length) runs.slice(0, 4).forEach((run) => choose(run.name, true));
      first = first && !runs.length;
      note.textContent = runs.length ? `${runs.length} runs in ${about.results}; ${runs.filter((run) => run.state === "running").length} at work.`
        : `There are no runs in ${about.results} yet. Try: eigengrad train`;
      filter.parentElement.hidden = !runs.length;
      show();
    } catch (error) {
      note.textContent = error.message;
    }
  }

  function choose(name, wanted) {
    if (!wanted) { chosen.delete(name); return; }
    const used = new Set(chosen.values());
    chosen.set(name, COLOURS.find((colour) => !used.has(colour)) ?? COLOURS[chosen.size % COLOURS.length]);
  }

  function show() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const focus = document.activeElement?.dataset?.run;
    fill(list, runs.filter((run) => words.every((word) => run.name.toLowerCase().includes(word))).map((run) => {
      const box = element("input", {type: "checkbox", checked: chosen.has(run.name), on: {change: () => { choose(run.name, box.checked); show(); }}});
      box.dataset.run = run.name;
      const swatch = element("span", {class: "swatch"});
      swatch.style.background = chosen.get(run.name) ?? "transparent";
      const epochs = run.state === "running" && run.epochs ? ` ${run.epoch}/${run.epochs}` : "";
      return element("li", {}, element("label", {title: run.text || run.name}, box, swatch, element("span", {class: "name"}, run.name),
        element("span", {class: `badge ${run.state}`}, run.state + epochs)));
    }));
    if (focus) list.querySelector(`[data-run="${CSS.escape(focus)}"]`)?.focus();
    const shown = runs.filter((run) => chosen.has(run.name));
    fill(charts, CURVES.filter(([name]) => shown.some((run) => run.curves[name]?.length)).map(([name, title]) => element("section", {class: "card"}, element("h2", {}, title),
      lines(title, shown.filter((run) => run.curves[name]).map((run) => ({name: run.name, colour: chosen.get(run.name), values: run.curves[name]}))))));
    if (!charts.children.length) fill(charts, element("p", {class: "soft"}, runs.length ? "Choose runs to see their curves; a run shows its first after an epoch." : ""));
  }

  return {
    root: element("section", {}, element("h1", {}, tool.title), element("p", {class: "lead"}, tool.lead), note,
      element("div", {class: "columns"}, element("div", {class: "card stack"}, filter, list), element("div", {class: "stack"}, charts, report))),
    shown(visible) {
      clearInterval(timer);
      if (!visible) return;
      refresh();
      timer = setInterval(() => { if (!document.hidden) refresh(); }, REFRESH);
    },
  };
}
