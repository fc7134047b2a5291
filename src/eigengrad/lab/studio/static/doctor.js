// The doctor: the spectrum of a saved matrix, what each rule makes of a gradient there, and the line to write.

import {fileSlot, optionControl, runner} from "./controls.js";
import {spectrum} from "./chart.js";
import {codeLine, element, fill} from "./dom.js";

export function doctorPanel(tool, about) {
  const slot = fileSlot(tool.slots[0], about, changed);
  const options = tool.options.map((option) => optionControl(option));
  const findings = element("div", {class: "stack", "aria-live": "polite"}, element("div", {class: "card"}, element("div", {class: "empty"},
    element("p", {}, "Save the matrix before the line that fails, and drop it here:", element("br"), element("code", {}, 'torch.save(A, "matrix.pt")')))));
  const run = runner("Examine", () => ({tool: tool.name, files: {matrix: slot.files.map((file) => file.key)},
    options: Object.fromEntries(options.map(({option, value}) => [option.name, value()]))}), show);
  function changed() {
    run.enable(slot.files.length > 0);
    if (slot.files.length) run.start();
  }
  function show(result) {
    fill(findings, diagnosis(result, slot.files[0]?.name ?? ""));
  }
  return {root: element("section", {}, element("h1", {}, tool.title), element("p", {class: "lead"}, tool.lead),
    element("div", {class: "columns"}, element("div", {class: "card stack"}, slot.root, options.map(({root}) => root), run.root), findings))};
}

function diagnosis({diagnosis: found, title, text}, name) {
  const parts = [element("section", {class: "card"},
    element("h2", {}, name ? `${name}: ${title}` : title),
    element("p", {}, element("span", {class: `badge ${found.verdict.replace(" ", "-")}`}, found.verdict), " ", capital(found.summary)),
    found.values.length ? facts(found) : null)];
  if (found.values.length) parts.push(element("section", {class: "card"}, element("h2", {}, `The spectrum${which(found)}`), spectrum(`${found.values.length} values`, found.values.map(Number), found.ties),
    element("p", {class: "soft small"}, "Absolute values, on a logarithmic scale. Red: equal to a neighbour to round-off. Hollow: negative.")));
  if (found.losses.length) parts.push(rules(found));
  parts.push(element("section", {class: "card"}, element("h2", {}, "What to write"), found.advice.map(({when, line, why}) =>
    element("div", {class: "advice"}, element("b", {}, `${when}:`), codeLine(line), element("div", {class: "soft small"}, why))),
    found.notes.map((note) => element("p", {class: "message"}, note))));
  parts.push(element("details", {class: "card"}, element("summary", {}, "As text, as the terminal shows it"), element("div", {class: "scroll"}, element("pre", {}, text))));
  return parts;
}

const capital = (sentence) => sentence.charAt(0).toUpperCase() + sentence.slice(1);
const which = (found) => found.worst.length ? ` of matrix [${found.worst.join(", ")}], whose gap is the smallest` : "";
const number = (value) => typeof value === "string" ? value : value >= 1e5 ? value.toExponential(1).replace("e+", "e") : Number(value.toPrecision(3)).toString();

/** A share in per cent; a dash for what does not exist. */
function percent(share) {
  if (share === null || share === undefined) return "–";
  if (typeof share === "string") return share;
  const value = 100 * share;
  if (value > 0 && value < 1e-3) return "<0.001 %";
  return `${value >= 1000 && value < 1e6 ? value.toFixed(0) : Number(value.toPrecision(3))} %`;
}

function facts(found) {
  const entries = [["smallest gap", found.values.length > 1 ? `${percent(found.relative_gap)} of the spread` : "–"], ["tied", `${found.tied} of ${found.values.length}`],
    ["rank", String(found.rank)], ["condition", number(found.condition)]];
  return element("dl", {class: "facts"}, entries.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

function rules(found) {
  const names = [...new Set([...Object.keys(found.amplification), ...found.losses.flatMap((loss) => Object.keys(loss.effects ?? {}))])];
  const grade = (error) => typeof error === "string" ? "bad" : error === undefined ? "" : error < 1e-3 ? "good" : error < 0.1 ? "warn" : "bad";
  const cell = (effect, part) => element("td", {class: effect ? grade(effect.error) : ""}, percent(effect?.[part]));
  const head = ["rule", "|R|·spread", "norm kept", ...found.losses.map((loss) => `error: ${loss.name}`)];
  const row = (title, amplification, effects, kind) => element("tr", {class: kind}, element("td", {}, title), element("td", {}, amplification),
    cell(effects[0], "kept"), effects.map((effect) => cell(effect, "error")));
  const body = names.map((name) => row(name, name in found.amplification ? number(found.amplification[name]) : "–", found.losses.map((loss) => loss.effects?.[name]), ""));
  if (found.losses.some((loss) => loss.exact)) body.push(row("the function", "", found.losses.map((loss) => loss.exact), "exact"));
  const functions = found.losses.filter((loss) => loss.exact).map((loss) => `${loss.name}: eg.${loss.function}`).join("; ");
  return element("section", {class: "card"}, element("h2", {}, `What each rule makes of a gradient${which(found)}`),
    element("div", {class: "scroll", tabIndex: 0, role: "region", "aria-label": "Table of rules"}, element("table", {}, element("thead", {}, element("tr", {}, head.map((name) => element("th", {scope: "col"}, name)))), element("tbody", {}, body))),
    element("p", {class: "soft small"}, `|R| stands for 1/gap. The norm and the first error are of a loss of single vectors (ties left out). By hand through the rule, and by the function itself: ${functions || "none"}.`));
}
