// Elements without markup: text never becomes HTML.

/** An element with properties, attributes (names with a dash, or role), listeners ({on: {click}}) and children. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (key === "on") for (const [type, act] of Object.entries(value)) made.addEventListener(type, act);
    else if (key.includes("-") || key === "role" || key === "for") made.setAttribute(key, value);
    else made[key === "class" ? "className" : key] = value;
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element with attributes and children. */
export function drawing(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Replace what an element holds. */
export function fill(parent, ...children) {
  parent.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
}

/** A line of code with a button that copies it. */
export function codeLine(text) {
  const copy = element("button", {type: "button", "aria-label": `Copy ${text}`, on: {click: async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "copied";
    setTimeout(() => { copy.textContent = "copy"; }, 1500);
  }}}, "copy");
  return element("div", {class: "code"}, element("code", {tabIndex: 0}, text), copy);
}
