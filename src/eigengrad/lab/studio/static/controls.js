// Controls that every tool has: places for files, options, progress.

import {fileAddress, finished, post, remove, upload} from "./api.js";
import {element, fill} from "./dom.js";

const PICTURES = "image/*,.tif,.tiff,.tga,.jp2,.avif,.ppm,.pgm";
const MATRICES = ".pt,.pth,.npy";

/** A place for files: choose or drop them. `changed()` is called when they change; `files` are those that are whole. */
export function fileSlot(slot, about, changed) {
  const files = [], thumbs = element("div", {class: "thumbs"}), note = element("div", {role: "status"});
  const input = element("input", {type: "file", multiple: slot.most > 1, accept: slot.kind === "matrix" ? MATRICES : PICTURES,
    "aria-label": `${slot.label}: choose a file`, on: {change: () => { take(input.files); input.value = ""; }}});
  const place = element("div", {class: "drop", on: {
    dragover: (event) => { event.preventDefault(); place.classList.add("over"); },
    dragleave: () => place.classList.remove("over"),
    drop: (event) => { event.preventDefault(); event.stopPropagation(); place.classList.remove("over"); take(event.dataTransfer.files); },
  }}, element("b", {}, "Choose"), slot.most > 1 ? " or drop pictures here" : slot.kind === "matrix" ? " or drop a .pt or .npy here" : " or drop a picture here", input);
  const count = slot.most > 1 ? `up to ${slot.most}` : "";
  const root = element("section", {}, element("div", {class: "slot-head"}, slot.label, element("small", {}, count)), thumbs, place, note);

  function complain(text) { note.append(element("p", {class: "message bad", role: "alert"}, text)); }

  async function take(list) {
    fill(note);
    for (const file of [...list].slice(0, slot.most)) await add(file, file.name);
  }

  async function add(file, name) {
    if (file.size > about.largest_upload) {
      complain(`${name} has ${(file.size / 1e6).toFixed(0)} MB; the studio takes up to ${(about.largest_upload / 1e6).toFixed(0)}.`);
      return;
    }
    const bar = element("progress", {max: 1, value: 0, "aria-label": `Uploading ${name}`});
    note.append(bar);
    try {
      const sent = await upload(file, name, slot.kind, (share) => { bar.value = share; });
      bar.removeAttribute("value");
      const whole = sent.job ? await finished(sent) : sent;
      while (files.length >= slot.most) drop(files[0]);
      files.push({...whole, key: whole.file});
      show();
      changed();
    } catch (error) {
      complain(error.message);
    } finally {
      bar.remove();
    }
  }

  function drop(file) {
    files.splice(files.indexOf(file), 1);
    remove(`/api/files/${file.key}`).catch(() => {});
    if (file.preview) remove(`/api/files/${file.preview}`).catch(() => {});
  }

  function show() {
    fill(thumbs, files.map((file) => element("figure", {class: `thumb${slot.most > 1 ? "" : " single"}${file.preview ? "" : " plain"}`},
      file.preview ? element("img", {src: fileAddress(file.preview), alt: file.name}) : null,
      element("figcaption", {title: file.name}, file.width ? `${file.name}, ${file.width}×${file.height}` : file.name),
      element("button", {type: "button", "aria-label": `Remove ${file.name}`, on: {click: () => { drop(file); show(); changed(); }}}, "×"))));
  }

  return {root, files, slot};
}

/** A control for an option; `value()` is what it is set to. */
export function optionControl(option, changed = () => {}) {
  const id = `option-${Math.random().toString(36).slice(2)}`;
  const help = element("small", {id: `${id}-help`}, option.help);
  if (option.kind === "switch") {
    const box = element("input", {type: "checkbox", id, checked: option.default, "aria-describedby": help.id, on: {change: changed}});
    return {option, value: () => box.checked, root: element("div", {class: "option"}, element("label", {class: "switch"}, box, option.label), help)};
  }
  const label = element("label", {for: id}, option.label);
  if (option.kind === "range") {
    const shown = element("output", {for: id}, String(option.default));
    const range = element("input", {type: "range", id, min: option.low, max: option.high, step: option.step, "aria-describedby": help.id,
      on: {input: () => { shown.textContent = range.value; changed(); }}});
    range.value = option.default;
    return {option, value: () => Number(range.value), root: element("div", {class: "option"}, element("div", {class: "head"}, label, shown), range, help)};
  }
  const field = option.kind === "choice"
    ? element("select", {id, "aria-describedby": help.id, on: {change: changed}}, option.choices.map(([value, text]) => element("option", {value}, text)))
    : element("input", {type: "text", id, "aria-describedby": help.id, autocomplete: "off", spellcheck: false, on: {input: changed}});
  field.value = option.default;
  return {option, value: () => field.value, root: element("div", {class: "option"}, element("div", {class: "head"}, label), field, help)};
}

/** A button that runs a tool, and what it shows meanwhile. `request()` gives the task, `done(result)` gets the result. */
export function runner(title, request, done) {
  const bar = element("progress", {max: 1, "aria-label": "Progress"}), text = element("div", {class: "soft small"});
  const status = element("div", {"aria-live": "polite"});
  const button = element("button", {type: "button", class: "primary wide", disabled: true, on: {click: start}}, title);
  const cancel = element("button", {type: "button", on: {click: () => job && remove(`/api/jobs/${job.job}`).catch(() => {})}}, "Cancel");
  let job = null, busy = false, ready = false;

  function enable(now = ready) {
    ready = now;
    button.disabled = busy || !ready;
  }

  function progress(now) {
    job = now;
    if (now.share > 0) bar.value = now.share; else bar.removeAttribute("value");
    if (now.state === "waiting") text.textContent = now.ahead ? `waiting; ${now.ahead} before it` : "starting";
    else text.textContent = `${now.text || "starting"}${now.share > 0 ? `, ${Math.round(100 * now.share)} %` : ""} · ${now.seconds.toFixed(0)} s`;
  }

  async function start() {
    if (busy || !ready) return;
    busy = true;
    enable();
    progress({state: "waiting", share: 0, ahead: 0});
    fill(status, element("div", {class: "progress"}, bar, cancel, text));
    try {
      const result = await finished(await post("/api/jobs", await request()), progress);
      fill(status);
      done(result);
    } catch (error) {
      fill(status, error.name === "AbortError" ? element("p", {class: "message"}, "Cancelled.")
        : element("p", {class: "message bad", role: "alert"}, error.message));
    } finally {
      busy = false;
      job = null;
      enable();
    }
  }

  return {root: element("div", {class: "stack"}, button, status), enable, start};
}
