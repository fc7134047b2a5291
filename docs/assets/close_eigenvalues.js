// Two eigenvalues to drag, and what each rule makes of the gradient between their eigenvectors.
"use strict";

(() => {
  const root = document.getElementById("close-eigenvalues");
  if (!root) return;
  const rules = window.eigengradRules;
  const TOP = 3; // the third eigenvalue stays here
  const SMALLEST = -9; // the smallest gap of the logarithmic axes, as a power of ten
  const state = { low: 1, high: 1.4, rtol: 1e-5, degree: 9, threshold: 100 };
  const WIDTH = Math.min(Math.max(root.clientWidth, 340), 640); // of the drawings, so that text has its size on a phone too
  const SHOWN = [
    ["exact", "Exact: torch", () => ({})],
    ["saturate", "Saturate: the default", () => ({ rtol: state.rtol })],
    ["taylor", "Taylor: the paper", () => ({ degree: state.degree })],
    ["clip", "Clip", () => ({ threshold: state.threshold })],
    ["lorentzian", "Lorentzian", () => ({})],
    ["mask", "Mask", () => ({})],
  ];

  const svg = (name, attributes, parent) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (parent) parent.append(node);
    return node;
  };
  const format = (x) => {
    if (!Number.isFinite(x)) return "∞";
    if (x === 0) return "0";
    return x >= 0.01 && x < 1e4 ? String(Number(x.toPrecision(3))) : x.toExponential(1).replace(".0e", "e").replace("e+", "e");
  };
  const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

  // ---- the line with the eigenvalues ----
  const line = root.querySelector(".number-line");
  line.setAttribute("viewBox", `0 0 ${WIDTH} 80`);
  const lineX = (value) => 20 + (value / TOP) * (WIDTH - 40);
  svg("line", { x1: 10, x2: WIDTH - 10, y1: 45, y2: 45, class: "axis" }, line);
  for (let tick = 0; tick <= TOP; tick++) {
    svg("line", { x1: lineX(tick), x2: lineX(tick), y1: 40, y2: 50, class: "axis" }, line);
    svg("text", { x: lineX(tick), y: 70, "text-anchor": "middle" }, line).textContent = tick;
  }
  svg("circle", { cx: lineX(TOP), cy: 45, r: 8, class: "fixed" }, line);
  const handles = ["low", "high"].map((name) => {
    const handle = svg("g", { class: `handle ${name}`, tabindex: 0, role: "slider" }, line);
    handle.setAttribute("aria-valuemin", 0);
    handle.setAttribute("aria-valuemax", TOP);
    handle.setAttribute("aria-label", name === "low" ? "first eigenvalue" : "second eigenvalue");
    svg("circle", { cx: 0, cy: 45, r: 22, class: "touch" }, handle);
    svg("circle", { cx: 0, cy: 45, r: 11 }, handle);
    svg("text", { x: 0, y: 22, "text-anchor": "middle" }, handle).textContent = name === "low" ? "λ₁" : "λ₂";
    const moveTo = (value) => {
      if (name === "low") state.low = clamp(value, 0.01, state.high);
      else state.high = clamp(value, state.low, TOP - 0.01);
      draw();
    };
    handle.addEventListener("pointerdown", (event) => {
      handle.setPointerCapture(event.pointerId);
      event.preventDefault();
      handle.focus();
    });
    handle.addEventListener("pointermove", (event) => {
      if (!handle.hasPointerCapture(event.pointerId)) return;
      const box = line.getBoundingClientRect();
      moveTo(((((event.clientX - box.left) / box.width) * WIDTH - 20) / (WIDTH - 40)) * TOP);
    });
    handle.addEventListener("keydown", (event) => {
      const direction = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
      if (!direction) return;
      event.preventDefault();
      moveTo(state[name] + direction * (event.shiftKey ? 0.001 : 0.05));
    });
    return [name, handle];
  });

  // ---- the curves ----
  const plot = root.querySelector(".curves");
  plot.setAttribute("viewBox", `0 0 ${WIDTH} 300`);
  const X = (power) => 52 + ((power - SMALLEST) / (0.3 - SMALLEST)) * (WIDTH - 65);
  const Y = (power) => 250 - ((power + 1) / 10.5) * 235;
  for (let power = SMALLEST; power <= 0; power += 3) {
    svg("line", { x1: X(power), x2: X(power), y1: 15, y2: 250, class: "grid" }, plot);
    svg("text", { x: X(power), y: 270, "text-anchor": "middle" }, plot).textContent = power ? `1e${power}` : "1";
  }
  for (let power = 0; power <= 9; power += 3) {
    svg("line", { x1: 52, x2: WIDTH - 13, y1: Y(power), y2: Y(power), class: "grid" }, plot);
    svg("text", { x: 46, y: Y(power) + 4, "text-anchor": "end" }, plot).textContent = power ? `1e${power}` : "1";
  }
  svg("text", { x: WIDTH / 2, y: 292, "text-anchor": "middle" }, plot).textContent = "gap λ₂ − λ₁";
  const marker = svg("line", { y1: 15, y2: 250, class: "marker" }, plot);
  const curves = SHOWN.map(([name]) => svg("path", { class: `curve ${name}` }, plot));
  const dots = SHOWN.map(([name]) => svg("circle", { r: 5, class: `dot ${name}` }, plot));

  // ---- the table ----
  const rows = SHOWN.map(([name, title]) => {
    const row = root.querySelector("tbody").insertRow();
    row.innerHTML = `<td><span class="swatch ${name}"></span>${title}</td><td></td><td></td>`;
    return row;
  });

  // ---- the controls ----
  const gapSlider = root.querySelector("[name=gap]");
  gapSlider.addEventListener("input", () => {
    const power = Number(gapSlider.value);
    const gap = power <= SMALLEST ? 0 : 10 ** power;
    state.low = Math.min(state.low, TOP - 0.01 - gap);
    state.high = state.low + gap;
    draw();
  });
  for (const name of ["rtol", "degree", "threshold"]) {
    const input = root.querySelector(`[name=${name}]`);
    input.addEventListener("input", () => {
      state[name] = name === "degree" ? Number(input.value) : 10 ** Number(input.value);
      draw();
    });
  }
  root.querySelector("[name=tie]").addEventListener("click", () => {
    state.high = state.low;
    draw();
  });
  root.querySelector("[name=reset]").addEventListener("click", () => {
    Object.assign(state, { low: 1, high: 1.4, rtol: 1e-5, degree: 9, threshold: 100 });
    root.querySelector("[name=rtol]").value = -5;
    root.querySelector("[name=degree]").value = 9;
    root.querySelector("[name=threshold]").value = 2;
    draw();
  });

  const heightOf = (value) => Y(clamp(Math.log10(value), -1.2, 9.6));

  function draw() {
    const spectrum = [state.low, state.high, TOP];
    const gap = state.high - state.low;
    const power = gap > 0 ? clamp(Math.log10(gap), SMALLEST, 0.3) : SMALLEST;
    for (const [name, handle] of handles) {
      handle.setAttribute("transform", `translate(${lineX(state[name])} 0)`);
      handle.setAttribute("aria-valuenow", state[name].toPrecision(6));
    }
    gapSlider.value = power;
    gapSlider.setAttribute("aria-valuetext", gap > 0 ? format(gap) : "equal");
    root.querySelector(".gap").textContent = gap > 0 ? format(gap) : "0: a tie";
    root.querySelector(".rtol").textContent = format(state.rtol);
    root.querySelector(".degree").textContent = state.degree;
    root.querySelector(".threshold").textContent = format(state.threshold);
    marker.setAttribute("x1", X(power));
    marker.setAttribute("x2", X(power));
    SHOWN.forEach(([name, , options], index) => {
      const chosen = options();
      let path = "";
      for (let p = SMALLEST; p <= 0.3; p += 0.05) {
        const at = [state.low, state.low + 10 ** p, Math.max(TOP, state.low + 10 ** p)];
        const value = rules[name](at, 0, 1, chosen);
        path += `${path ? "L" : "M"}${X(p).toFixed(1)} ${heightOf(value).toFixed(1)}`;
      }
      curves[index].setAttribute("d", path);
      const value = rules[name](spectrum, 0, 1, chosen);
      dots[index].setAttribute("cx", X(power));
      dots[index].setAttribute("cy", heightOf(value));
      const share = gap > 0 ? value * gap : NaN;
      rows[index].cells[1].textContent = format(value);
      rows[index].cells[2].textContent = Number.isNaN(share) ? "there is none" : `${(100 * share).toFixed(1)} %`;
    });
  }
  draw();
})();
