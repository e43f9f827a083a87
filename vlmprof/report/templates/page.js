"use strict";
// Draws the figures in the colours of the page, those that are folded away when they are unfolded, and all again when
// light turns to dark.
(() => {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const themed = (layout) => {
    const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line") };
    const page = {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--ink"), family: getComputedStyle(document.body).fontFamily, size: 12 },
      hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--line"), font: { color: colour("--ink") } },
      dragmode: false,
    };
    const found = { ...layout, ...page };
    for (const name of Object.keys(layout).filter((key) => /^[xy]axis/.test(key))) {
      found[name] = { ...axis, ...layout[name], fixedrange: true };
    }
    return found;
  };

  const folded = (place) => place.closest("details:not([open])") !== null;

  const draw = () => {
    for (const place of document.querySelectorAll("[data-plot]")) {
      if (folded(place)) continue;
      const { data, layout } = structuredClone(plots[place.dataset.plot]);
      Plotly.react(place, data, themed(layout), { responsive: true, displayModeBar: false });
    }
  };
  draw();
  dark.addEventListener("change", draw);
  document.addEventListener("toggle", (event) => event.target.matches(".part") && draw(), true);
})();
