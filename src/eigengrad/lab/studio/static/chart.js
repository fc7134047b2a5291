// Small charts, as SVG.

import {drawing} from "./dom.js";

export const COLOURS = ["#1f77b4", "#e4572e", "#2a9d5c", "#8e63ce", "#c58b00", "#d1477f", "#5b7083", "#00a0a8"];
const WIDTH = 480, HEIGHT = 220, LEFT = 54, RIGHT = 10, TOP = 10, BOTTOM = 24;

function ticks(low, high, count = 4) {
  const raw = (high - low) / count || 1, unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= raw);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(value);
  return found;
}

export const short = (value) => value === 0 ? "0" : Math.abs(value) >= 1e4 || Math.abs(value) < 1e-2 ? value.toExponential(0).replace("e+", "e") : String(Number(value.toPrecision(3)));

function frame(label, xLabel) {
  return drawing("svg", {class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label},
    drawing("line", {class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM}),
    text(xLabel, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 16, "middle"));
}

function text(content, x, y, anchor) {
  const made = drawing("text", {x, y, "text-anchor": anchor});
  made.textContent = content;
  return made;
}

/** Lines over the epochs: series are [{name, colour, values}], gaps are null. */
export function lines(label, series) {
  const chart = frame(label, "epoch");
  const all = series.flatMap(({values}) => values.filter((value) => value !== null));
  if (!all.length) return chart;
  const low = Math.min(0, ...all), high = Math.max(...all) || 1, last = Math.max(2, ...series.map(({values}) => values.length));
  const x = (index) => LEFT + (index / (last - 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  for (const value of ticks(low, high)) {
    chart.append(drawing("line", {class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), opacity: 0.6}), text(short(value), LEFT - 6, y(value) + 4, "end"));
  }
  chart.append(text("1", LEFT, HEIGHT - BOTTOM + 16, "middle"), text(String(last), WIDTH - RIGHT, HEIGHT - BOTTOM + 16, "end"));
  for (const {name, colour, values} of series) {
    let path = "", pen = "M";
    values.forEach((value, index) => {
      if (value === null) { pen = "M"; return; }
      path += `${pen}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    });
    const title = drawing("title");
    title.textContent = name;
    chart.append(drawing("path", {d: path, fill: "none", stroke: colour, "stroke-width": 2, "stroke-linejoin": "round"}, title));
    const end = values.length - 1;
    if (values[end] !== null && values[end] !== undefined) chart.append(drawing("circle", {cx: x(end), cy: y(values[end]), r: 3, fill: colour}));
  }
  return chart;
}

/** The absolute values of a spectrum, on a logarithmic scale; negative ones are hollow, tied neighbours red. */
export function spectrum(label, values, ties) {
  const chart = frame(label, "index");
  const largest = Math.max(...values.map(Math.abs)) || 1, floor = largest * 1e-16;
  const logs = values.map((value) => Math.log10(Math.max(Math.abs(value), floor)));
  const high = Math.ceil(Math.max(...logs)), low = Math.min(Math.floor(Math.min(...logs)), high - 1);
  const x = (index) => LEFT + ((index + 0.5) / values.length) * (WIDTH - LEFT - RIGHT);
  const y = (log) => HEIGHT - BOTTOM - ((log - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const every = Math.max(1, Math.ceil((high - low) / 5));
  for (let power = low; power <= high; power += every) {
    chart.append(drawing("line", {class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(power), y2: y(power), opacity: 0.6}), text(`1e${power}`, LEFT - 6, y(power) + 4, "end"));
  }
  const step = Math.max(1, Math.ceil(values.length / 400));
  for (let index = 0; index < values.length; index += step) {
    const colour = ties[index] ? "#d4472a" : "#2b86c0";
    const mark = drawing("circle", {cx: x(index), cy: y(logs[index]), r: values.length > 100 ? 2 : 4, fill: values[index] < 0 ? "none" : colour, stroke: colour, "stroke-width": 1.5});
    const title = drawing("title");
    title.textContent = `value ${index + 1}: ${values[index].toPrecision(6)}`;
    mark.append(title);
    chart.append(mark);
  }
  return chart;
}
