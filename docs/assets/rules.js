// The gradient rules of src/eigengrad/gradients, for a spectrum in ascending order: what takes the place of 1/|λi − λj|.
// tests/docs/test_site.py compares every one with the Python that the library runs.
"use strict";

window.eigengradRules = (() => {
  const EPS = Number.EPSILON; // that of float64, as torch.finfo(torch.float64).eps
  const TINY = 2.2250738585072014e-308;

  const scale = (L) => Math.max(Math.abs(L[0]), Math.abs(L[L.length - 1])) || 1;
  const roundOff = (L) => scale(L) * L.length * EPS;
  const spread = (L) => {
    const difference = L[L.length - 1] - L[0];
    return difference > roundOff(L) ? difference : scale(L);
  };
  const gap = (L, i, j) => Math.abs(L[i] - L[j]);

  const exact = (L, i, j) => 1 / gap(L, i, j);

  const saturate = (L, i, j, { rtol = 1e-5 } = {}) => {
    const tau = Math.max(rtol * spread(L), EPS * scale(L), TINY);
    const d = gap(L, i, j);
    return d > 0 ? Math.expm1(-d / tau) / -d : 1 / tau;
  };

  const mask = (L, i, j, { rtol = null } = {}) => {
    const tie = rtol === null ? roundOff(L) : rtol * spread(L);
    const d = gap(L, i, j);
    return d > tie ? 1 / d : 0;
  };

  const lorentzian = (L, i, j, { broadening = 1e-12 } = {}) => {
    const width = Math.max(spread(L) * Math.sqrt(broadening), TINY);
    const x = gap(L, i, j) / width;
    return x / (x * x + 1) / width;
  };

  const truncate = (L, i, j, { energy = 0.9999 } = {}) => {
    const weight = L.map((value) => Math.max(value, 0) / scale(L));
    const total = weight.reduce((a, b) => a + b, 0);
    const kept = (k) => weight.slice(k + 1).reduce((a, b) => a + b, 0) < energy * total;
    const d = gap(L, i, j);
    return d > roundOff(L) && kept(i) && kept(j) ? 1 / d : 0;
  };

  const taylor = (L, i, j, { degree = 9, eps = null } = {}) => {
    const floor = Math.max(eps === null ? roundOff(L) : eps, (degree + 1) * TINY);
    const shifted = L[0] < -roundOff(L) ? L.map((value) => value - L[0] + floor) : L;
    const [a, b] = [Math.max(shifted[i], floor), Math.max(shifted[j], floor)].sort((x, y) => y - x);
    const q = b / a;
    const sum = q < 1 ? Math.expm1(Math.log(q) * (degree + 1)) / (q - 1) : degree + 1;
    return sum / a;
  };

  const clip = (L, i, j, { threshold = 100 } = {}) => 1 / Math.max(gap(L, i, j), 1 / threshold);

  return { exact, saturate, taylor, clip, lorentzian, mask, truncate };
})();
