r"""The formula of each public name in TeX, for the reference. Docstrings have the same in plain characters.

Throughout, :math:`g` with an index is the gradient that comes in or goes out, and :math:`\circ` the product by entries.
"""

from __future__ import annotations

__all__ = ["FORMULAS"]

_SPECTRAL = r"g_A = V \left[ F \circ (V^H G\, V) \right] V^H, \qquad "


def _pair(rule: str) -> str:
    return rf"\frac{{1}}{{\lambda_j - \lambda_i}} \;\longrightarrow\; {rule}"


_WHITENED = r"y = \gamma\, S\,(x - \mu) + \beta, \qquad S\,(M + \varepsilon I)\,S^T = I"

FORMULAS = {
    "eigh": r"g_A = V \left[ \tfrac12 (X - X^H) \circ R"
    r" + \operatorname{diag}(g_\lambda) \right] V^H"
    r" \\ X = V^H g_V, \qquad R_{ij} \;\text{ in place of }\; \frac{1}{\lambda_j - \lambda_i}",
    "svd": r"\Omega_{U,V} = \tfrac12 \left[ (dP + dP^H) \circ \frac{1}{\sigma_j - \sigma_i}"
    r" \;\pm\; (dP - dP^H) \circ \frac{1}{\sigma_j + \sigma_i} \right] \\ dP = U^H dA\, V",
    "eigvalsh": r"g_A = V \operatorname{diag}(g_\lambda)\, V^H",
    "svdvals": r"g_A = U \operatorname{diag}(g_\sigma)\, V^H",
    "matrix_sqrt": _SPECTRAL + r"F_{ij} = \frac{1}{\sqrt{\lambda_i} + \sqrt{\lambda_j}}",
    "matrix_inv_sqrt": _SPECTRAL
    + r"F_{ij} = \frac{-1}{\sqrt{\lambda_i}\sqrt{\lambda_j}\,(\sqrt{\lambda_i} + \sqrt{\lambda_j})}",
    "matrix_power": _SPECTRAL + r"F_{ij} = \frac{\lambda_i^p - \lambda_j^p}{\lambda_i - \lambda_j}",
    "matrix_log": _SPECTRAL + r"F_{ij} = \frac{\log \lambda_i - \log \lambda_j}{\lambda_i - \lambda_j}",
    "matrix_exp": _SPECTRAL + r"F_{ij} = \frac{e^{\lambda_i} - e^{\lambda_j}}{\lambda_i - \lambda_j}",
    "matrix_function": _SPECTRAL
    + r"F_{ij} = \frac{f(\lambda_i) - f(\lambda_j)}{\lambda_i - \lambda_j}, \quad F_{ii} = f'(\lambda_i)",
    "logdet": r"\log\det A = \sum_i \log \lambda_i, \qquad g_A = g\, A^{-1}",
    "kabsch": r"R, t, s = \underset{R,\,t,\,s}{\operatorname{arg}\min} \sum_i w_i\, \| s R\, p_i + t - q_i \|^2,"
    r" \qquad \det R = 1",
    "procrustes": r"Q = \underset{Q^H Q = I}{\operatorname{arg}\min}\; \| A Q - B \|_F",
    "polar": r"A = U H, \qquad U^H dU \;\text{ has }\; \frac{1}{\sigma_i + \sigma_j} \;\text{ in place of }\;"
    r" \frac{1}{\sigma_j - \sigma_i}",
    "spectral_projector": _SPECTRAL
    + r"F_{ij} = \frac{\pm 1}{\lambda_i - \lambda_j} \;\text{ across the cut, 0 elsewhere}",
    "low_rank": r"A_k = U_k \Sigma_k V_k^H = A\, V_k V_k^H",
    "nuclear_norm": r"\| A \|_* = \sum_i \sigma_i, \qquad g_A = g\, U V^H",
    "pinv": r"dA^+ = -A^+ dA\, A^+ + A^+ A^{+H} dA^H (I - A A^+) + (I - A^+ A)\, dA^H A^{+H} A^+",
    "Saturate": _pair(
        r"\frac{1 - e^{-\Delta/\tau}}{\Delta} \\ \Delta = |\lambda_j - \lambda_i|, \quad"
        r" \tau = \mathrm{rtol} \cdot (\lambda_{\max} - \lambda_{\min})"
    ),
    "Exact": r"R_{ij} = \frac{1}{\lambda_j - \lambda_i}",
    "Mask": _pair(r"\frac{1}{\Delta} \;\text{ if }\; \Delta > \mathrm{tie}, \quad 0 \;\text{ otherwise}"),
    "Lorentzian": _pair(r"\frac{\Delta}{\Delta^2 + \varepsilon\, s^2}, \qquad s = \lambda_{\max} - \lambda_{\min}"),
    "Truncate": _pair(r"\frac{1}{\Delta} \;\text{ if both are kept}, \quad 0 \;\text{ otherwise}"),
    "Taylor": _pair(r"\frac{1 + q + \dots + q^K}{a} = \frac{1 - q^{K+1}}{a - b}, \qquad q = \frac{b}{a}"),
    "Clip": _pair(r"\min\left( \frac{1}{\Delta},\, t \right)"),
    "PowerIteration": r"g_{M_{i-1}} \mathrel{+}= \sum_{k=0}^{\mathrm{steps}-1}"
    r" \frac{M_{i-1}^k\, (I - v_i v_i^T)}{\| M_{i-1} v_i \|^{k+1}}\; g_{v_i} v_i^T",
    "PairRule": r"g_A = V \left[ \tfrac12 (X - X^H) \circ R + \operatorname{diag}(g_\lambda) \right] V^H, \qquad"
    r" R_{ij} = \pm\,\mathrm{reciprocal}(\lambda)_{ij}",
    "nn.DecorrelatedBatchNorm1d": _WHITENED,
    "nn.DecorrelatedBatchNorm2d": _WHITENED,
    "nn.DecorrelatedBatchNorm3d": _WHITENED,
    "nn.IterativeNorm": r"T = \tfrac12 (3 I - Z Y), \quad Y \leftarrow Y T, \quad Z \leftarrow T Z \\"
    r" S = Z / \sqrt{\operatorname{tr} \Sigma}",
    "nn.SecondOrderPool2d": r"S = f\left( \tfrac1M \tilde X \tilde X^T + \varepsilon I \right), \qquad"
    r" f(\lambda) = \lambda^{1/2}",
    "nn.WhitenColor2d": r"y = \alpha \left[ \Sigma_s^{1/2}\, \Sigma_c^{-1/2} (x - \mu_c) + \mu_s \right]"
    r" + (1 - \alpha)\, x",
    "nn.fuse_conv_dbn": r"A (W x + b) + c = (A W)\, x + (A b + c)",
    "nn.functional.whitening_matrix": r"S\,(M + \varepsilon I)\,S^T = I",
    "nn.functional.covariance": r"\mu = \frac1m \sum_i x_i, \qquad \Sigma = \frac1m \sum_i (x_i - \mu)(x_i - \mu)^H",
    "nn.functional.second_order_pool": r"S = f\left( \tfrac1M \tilde X \tilde X^T + \varepsilon I \right), \qquad"
    r" f(\lambda) = \lambda^{\alpha}",
    "nn.functional.whiten_color": r"y = \alpha \left[ S_s S_w (x - \mu_c) + \mu_s \right] + (1 - \alpha)\, x \\"
    r" S_w = (\Sigma_c + \varepsilon I)^{-1/2}, \quad S_s = (\Sigma_s + \varepsilon I)^{1/2}",
    "nn.functional.color_transfer": r"y = \Sigma_B^{1/2}\, \Sigma_A^{-1/2} (x - \mu_A) + \mu_B",
    "UnitNormOrNaN": _pair(r"\frac{1}{\|R\|_F} \cdot \frac{1}{\lambda_j - \lambda_i}"),
    "pade_sqrt": r"A^{1/2} \approx \frac{\sqrt{c}}{N} \Big( I + 2 \sum_{j=1}^{K}"
    r" (\cos^2\!a_j\, W + \sin^2\!a_j\, I)^{-1} W \Big)"
    r" \\ W = A / c, \quad c = \|A\|_F, \quad N = 2 K + 1, \quad a_j = \pi j / N",
    "pade_inv_sqrt": r"A^{-1/2} \approx \frac{1}{N \sqrt{c}} \Big( I + 2 \sum_{j=1}^{K}"
    r" (\cos^2\!a_j\, W + \sin^2\!a_j\, I)^{-1} \Big)"
    r" \\ W = A / c, \quad c = \|A\|_F, \quad N = 2 K + 1, \quad a_j = \pi (j - \tfrac12) / N",
    "taylor_sqrt": r"A^{1/2} \approx \sqrt{c}\, \sum_{k=0}^{K} (-1)^k \binom{1/2}{k} (I - W)^k"
    r" \\ W = A / c, \quad c = \|A\|_F",
    "taylor_inv_sqrt": r"A^{-1/2} \approx \frac{1}{\sqrt{c}} \sum_{k=0}^{K} (-1)^k \binom{-1/2}{k} (I - W)^k"
    r" \\ W = A / c, \quad c = \|A\|_F",
    "newton_schulz_sqrt": r"T = \tfrac12 (3 I - Z Y), \quad Y \leftarrow Y T, \quad Z \leftarrow T Z \\"
    r" A^{1/2} \approx \sqrt c\, Y",
    "newton_schulz_inv_sqrt": r"T = \tfrac12 (3 I - Z Y), \quad Y \leftarrow Y T, \quad Z \leftarrow T Z \\"
    r" A^{-1/2} \approx Z / \sqrt c",
    "power_iteration": r"v \leftarrow \frac{A v}{\| A v \|}, \qquad \lambda = v^H A v, \qquad"
    r" A \leftarrow A - (A v)\, v^H",
}
