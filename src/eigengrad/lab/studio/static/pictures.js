// Colour and Style: pictures in, a slider between before and after, a mask drawn with a brush.

import {fileAddress, finished, remove, upload} from "./api.js";
import {fileSlot, optionControl, runner} from "./controls.js";
import {codeLine, element, fill} from "./dom.js";

export function picturePanel(tool, about) {
  const slots = tool.slots.filter((slot) => slot.kind === "picture").map((slot) => fileSlot(slot, about, changed));
  const options = tool.options.map((option) => optionControl(option, showCommand));
  const [content] = slots;
  const stage = element("section", {class: "card stage", "aria-label": "Picture"});
  const command = element("div");
  const mask = tool.slots.some((slot) => slot.kind === "mask") ? brush(() => { showStage(); showCommand(); }) : null;
  const run = runner("Make the picture", request, finish);
  let result = null, shownContent = null;

  async function request() {
    const files = Object.fromEntries(slots.map(({slot, files}) => [slot.name, files.map((file) => file.key)]));
    const drawn = await mask?.upload();
    if (drawn) files.mask = [drawn];
    return {tool: tool.name, files, options: Object.fromEntries(options.map(({option, value}) => [option.name, value()]))};
  }

  function finish(made) {
    if (result) for (const key of [result.file, result.preview]) remove(`/api/files/${key}`).catch(() => {});
    result = made;
    mask?.stop();
    showStage();
    stage.scrollIntoView({block: "nearest"});
  }

  const complete = () => slots.every(({slot, files}) => files.length >= slot.least);

  function changed() {
    run.enable(complete());
    const now = content.files[0]?.key ?? null;
    if (now !== shownContent) {
      shownContent = now;
      result = null;
      mask?.reset(content.files[0]);
      showStage();
    }
    showCommand();
  }

  function showStage() {
    const [picture] = content.files;
    if (!picture) {
      fill(stage, element("div", {class: "empty"}, element("p", {}, "Choose a photograph and what it is to look like.", element("br"), "Nothing leaves this machine.")));
      return;
    }
    const view = mask?.active ? mask.view(picture) : result ? comparison(picture, result) : still(picture);
    const tools = element("div", {class: "row"}, mask?.buttons() ?? null);
    if (result && !mask?.active) {
      tools.append(element("span", {class: "soft small"}, `${result.width}×${result.height}`),
        element("a", {class: "button primary", href: fileAddress(result.file, true), download: result.name}, "Download full size"));
    }
    fill(stage, view, tools);
  }

  function showCommand() {
    if (!complete()) { fill(command); return; }
    const words = ["eigengrad", tool.name, ...slots.flatMap(({files}) => files.map((file) => quoted(file.name))), "-o", "out.png"];
    for (const {option, value} of options) {
      if (value() === option.default) continue;
      words.push(option.flag, ...(option.kind === "switch" ? [] : [String(value())]));
    }
    if (mask?.drawn) for (const _ of tool.name === "stylize" ? slots[1].files : [0]) words.push("--mask", "mask.png");
    fill(command, element("p", {class: "soft small"}, "The same in a terminal:"), codeLine(words.join(" ")));
  }

  showStage();
  const root = element("section", {}, element("h1", {}, tool.title), element("p", {class: "lead"}, tool.lead),
    element("div", {class: "columns"},
      element("div", {class: "card stack"}, slots.map(({root}) => root), options.map(({root}) => root), run.root),
      element("div", {class: "stack follows"}, stage, command)));
  return {root};
}

const quoted = (name) => /^[\w.-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`;

function still(picture) {
  return element("div", {class: "compare"}, element("img", {src: fileAddress(picture.preview), alt: picture.name}));
}

/** Before and after, with a slider between them that mouse, finger and arrow keys move. */
function comparison(before, after) {
  const right = element("img", {class: "after", src: fileAddress(after.preview), alt: `${before.name}, afterwards`});
  const line = element("div", {class: "line"});
  const range = element("input", {type: "range", min: 0, max: 100, step: 0.5, "aria-label": "Before on the left, after on the right", on: {input: move}});
  range.value = 50;
  function move() {
    right.style.clipPath = `inset(0 0 0 ${range.value}%)`;
    line.style.left = `${range.value}%`;
    range.setAttribute("aria-valuetext", `${Math.round(100 - range.value)} % of the result shown`);
  }
  move();
  return element("div", {class: "compare"}, element("img", {src: fileAddress(before.preview), alt: `${before.name}, before`}), right, line,
    element("span", {class: "tag left"}, "before"), element("span", {class: "tag right"}, "after"), range);
}

/** A brush that paints where the picture may change. */
function brush(changed) {
  const canvas = element("canvas", {role: "img", "aria-label": "Paint with the mouse or a finger where the picture may change"});
  const ink = canvas.getContext("2d", {willReadFrequently: true});
  const state = {active: false, drawn: false, erasing: false, size: 8};
  let last = null, uploaded = null;

  function reset(picture) {
    state.active = state.drawn = false;
    if (picture) {
      const scale = Math.min(1, 1024 / Math.max(picture.width, picture.height));
      canvas.width = Math.max(1, Math.round(picture.width * scale));
      canvas.height = Math.max(1, Math.round(picture.height * scale));
    }
    ink.clearRect(0, 0, canvas.width, canvas.height);
  }

  function at(event) {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width * canvas.width, (event.clientY - box.top) / box.height * canvas.height];
  }

  function stroke(event) {
    const point = at(event);
    ink.globalCompositeOperation = state.erasing ? "destination-out" : "source-over";
    ink.strokeStyle = "#ff5a3c";
    ink.lineWidth = state.size / 100 * Math.max(canvas.width, canvas.height);
    ink.lineCap = ink.lineJoin = "round";
    ink.beginPath();
    ink.moveTo(...(last ?? point));
    ink.lineTo(point[0] + 0.01, point[1]);
    ink.stroke();
    last = point;
    state.drawn = true;
  }

  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); last = null; stroke(event); });
  canvas.addEventListener("pointermove", (event) => { if (event.buttons) stroke(event); });
  canvas.addEventListener("pointerup", () => { last = null; changed(); });
  canvas.style.opacity = 0.55;

  /** White where it was painted, black elsewhere, as a PNG. */
  function image() {
    const made = element("canvas", {width: canvas.width, height: canvas.height}), pen = made.getContext("2d");
    pen.drawImage(canvas, 0, 0);
    pen.globalCompositeOperation = "source-in";
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, made.width, made.height);
    pen.globalCompositeOperation = "destination-over";
    pen.fillStyle = "#000";
    pen.fillRect(0, 0, made.width, made.height);
    return new Promise((done) => made.toBlob(done, "image/png"));
  }

  function buttons() {
    const brushButton = element("button", {type: "button", "aria-pressed": String(state.active), on: {click: () => { state.active = !state.active; changed(); }}},
      state.active ? "Done painting" : state.drawn ? "Edit the mask" : "Paint a mask");
    if (!state.active) {
      return [brushButton, state.drawn ? element("button", {type: "button", on: {click: () => { clear(); changed(); }}}, "Remove the mask") : null];
    }
    const size = element("input", {type: "range", min: 1, max: 30, step: 1, "aria-label": "Size of the brush", on: {input: () => { state.size = Number(size.value); }}});
    size.value = state.size;
    size.style.width = "8rem";
    return [brushButton,
      element("button", {type: "button", "aria-pressed": String(state.erasing), on: {click: () => { state.erasing = !state.erasing; changed(); }}}, "Eraser"),
      element("button", {type: "button", on: {click: () => { invert(); changed(); }}}, "Invert"),
      element("button", {type: "button", on: {click: () => { clear(); changed(); }}}, "Clear"),
      element("span", {class: "soft small"}, "Brush"), size];
  }

  function clear() {
    ink.clearRect(0, 0, canvas.width, canvas.height);
    state.drawn = false;
  }

  function invert() {
    ink.globalCompositeOperation = "source-out";
    ink.fillStyle = "#ff5a3c";
    ink.fillRect(0, 0, canvas.width, canvas.height);
    state.drawn = true;
  }

  return {
    get active() { return state.active; },
    get drawn() { return state.drawn; },
    reset, buttons, image,
    stop() { state.active = false; },
    view: (picture) => element("div", {class: "compare"}, element("img", {src: fileAddress(picture.preview), alt: picture.name}), canvas),
    /** The key of the mask as a file of the server; nothing if none was drawn. */
    async upload() {
      if (!state.drawn) return null;
      if (uploaded) remove(`/api/files/${uploaded}`).catch(() => {});
      uploaded = (await finished(await upload(await image(), "mask.png", "mask"))).file;
      return uploaded;
    },
  };
}
