// The page: tabs, the theme, and a panel for each tool.

import {get} from "./api.js";
import {doctorPanel} from "./doctor.js";
import {element, fill} from "./dom.js";
import {picturePanel} from "./pictures.js";
import {runsPanel} from "./runs.js";

const RUNS = {name: "runs", title: "Runs", lead: "The report of the results folder, and the curves of its training runs, live."};

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "☀" : "☾";
}

function prepareTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => localStorage.getItem("theme") ?? (system.matches ? "dark" : "light");
  setTheme(chosen());
  system.addEventListener("change", () => setTheme(chosen()));
  document.getElementById("theme").addEventListener("click", () => {
    localStorage.setItem("theme", chosen() === "dark" ? "light" : "dark");
    setTheme(chosen());
  });
}

function prepareTabs(panels) {
  const list = document.getElementById("tabs"), main = document.getElementById("main");
  const tabs = panels.map(({tool, panel}) => {
    const tab = element("button", {type: "button", role: "tab", id: `tab-${tool.name}`,
      "aria-controls": `panel-${tool.name}`, on: {click: () => choose(tool.name)}}, tool.title);
    Object.assign(panel.root, {id: `panel-${tool.name}`, tabIndex: -1});
    panel.root.setAttribute("role", "tabpanel");
    panel.root.setAttribute("aria-labelledby", tab.id);
    return tab;
  });
  fill(list, tabs);
  fill(main, panels.map(({panel}) => panel.root));
  function choose(name, focus = false) {
    const index = Math.max(0, panels.findIndex(({tool}) => tool.name === name));
    panels.forEach(({panel}, i) => {
      panel.root.hidden = i !== index;
      tabs[i].setAttribute("aria-selected", String(i === index));
      tabs[i].tabIndex = i === index ? 0 : -1;
      panel.shown?.(i === index);
    });
    if (focus) tabs[index].focus();
    history.replaceState(null, "", `#${panels[index].tool.name}`);
    document.title = `${panels[index].tool.title} · eigengrad studio`;
  }
  list.addEventListener("keydown", (event) => {
    const now = tabs.indexOf(document.activeElement);
    const next = {ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: tabs.length - 1}[event.key];
    if (next === undefined || now < 0) return;
    event.preventDefault();
    choose(panels[(next + tabs.length) % tabs.length].tool.name, true);
  });
  choose(location.hash.slice(1));
}

async function start() {
  prepareTheme();
  try {
    const about = await get("/api/studio");
    const panels = about.tools.map((tool) => ({tool, panel: (tool.name === "doctor" ? doctorPanel : picturePanel)(tool, about)}));
    panels.push({tool: RUNS, panel: runsPanel(RUNS, about)});
    prepareTabs(panels);
    document.getElementById("footer").textContent =
      `eigengrad ${about.version}. Everything stays on this machine; uploads are deleted when the studio ends.`;
    // A file that misses its place must not replace the page.
    for (const type of ["dragover", "drop"]) addEventListener(type, (event) => event.preventDefault());
  } catch (error) {
    fill(document.getElementById("main"), element("p", {class: "message bad", role: "alert"}, error.message));
  }
}

start();
