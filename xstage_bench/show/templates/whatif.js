// The controls and charts of the report: all that is asked is answered here, and nothing leaves the page.
(() => {
  "use strict";
  const $ = (id) => document.getElementById(id), data = JSON.parse($("play-data").textContent);
  const names = ["pair", "sms", "warps", "kib", "gap", "bursts"], at = (name) => $("w-" + name), models = new Map();
  const arrow = (pair) => pair.replace(">-1", " → host").replace(">", " → ");
  const text = (v, digits = 2) => v === Infinity ? "∞" : Number(v.toPrecision(v >= 100 ? 3 : digits)).toString();
  const entry = () => data.pairs.find((p) => p.pair === at("pair").value) || data.pairs[0];
  const modelOf = (p) => models.get(p.pair) || models.set(p.pair, NodeModel.make({ ...p, table: data.tables[p.table], ...data.maps[p.map] })).get(p.pair);
  const PRESETS = { "of my own": null, "GEMM tile, 16 KiB every 4 µs": [4, 16, 4, 16], "all-to-all of a MoE layer, 32 KiB back to back": [8, 32, 0, 16],
    "attention block, 64 KiB every 20 µs": [4, 64, 20, 8], "small messages, 2 KiB every 1 µs": [1, 2, 1, 32] };

  function asked() {
    const p = entry(), clamp = (name, low, high) => Math.min(Math.max(Number(at(name).value) || low, low), high);
    const warps = Math.round(clamp("warps", 1, 16)), step = 512 * warps;
    return { p, producers: Math.round(clamp("sms", 1, p.smids)), warps, step, bytes: Math.max(1, Math.round(clamp("kib", 0.5, 4096) * 1024 / step)) * step,
      gap: Math.round(clamp("gap", 0, 1000) * p.clock_mhz), bursts: Math.round(clamp("bursts", 1, 64)) };
  }
  const schedule = (a, bytes = a.bytes, gap = a.gap, bursts = a.bursts) =>
    ({ producers: a.producers, warps: a.warps, start: "free", bursts: Array.from({ length: bursts }, () => ({ bytes, gap })) });
  const stalls = (m, s) => m.predict(s).some((b) => b.stalled);
  const within = (a, bytes) => [[a.producers, "producers"], [a.warps, "warps"], [bytes, "bytes"]].every(([v, k]) => v >= a.p.calibrated[k][0] && v <= a.p.calibrated[k][1]);

  function ink(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
  // Axes from zero: top value, line with its name, and what `plot` draws with the two scales.
  function chart(canvas, wide, high, unit, line, plot, said) {
    const c = canvas.getContext("2d"), w = canvas.width, h = canvas.height, left = 62, low = h - 34;
    const x = (v) => left + (w - left - 12) * v / wide, y = (v) => low - (low - 22) * v / high;
    c.clearRect(0, 0, w, h);
    c.font = "20px system-ui, sans-serif";
    plot(c, x, y);
    c.fillStyle = c.strokeStyle = ink("--ink");
    c.lineWidth = 1.5;
    c.strokeRect(left, 22, w - left - 12, low - 22);
    c.textAlign = "right";
    c.fillText(text(high), left - 6, 36);
    c.fillText("0", left - 6, low);
    c.fillText(`${text(wide)} ${unit}`, w - 12, h - 8);
    if (line !== null && line <= high) {
      c.setLineDash([8, 5]);
      c.beginPath(); c.moveTo(left, y(line)); c.lineTo(w - 12, y(line)); c.stroke();
      c.setLineDash([]);
    }
    canvas.setAttribute("aria-label", said);
  }

  let map = null;
  function drawOnset(a, m) {
    const top = { kib: Math.max(64, 2 * a.bytes / 1024), gap: Math.max(20, 2 * a.gap / a.p.clock_mhz) }, n = 20;
    const key = [a.p.pair, a.producers, a.warps, a.bursts, top.kib, top.gap].join();
    if (!map || map.key !== key) {
      map = { key, top, cells: [] };
      for (let i = 0; i < n; i++) {
        const bytes = Math.max(1, Math.round((i + 0.5) / n * top.kib * 1024 / a.step)) * a.step;
        let lo = 0, hi = n; // a longer gap never stalls more: the first free cell by bisection
        while (lo < hi) {
          const mid = (lo + hi) >> 1;
          if (stalls(m, schedule(a, bytes, Math.round((mid + 0.5) / n * top.gap * a.p.clock_mhz), Math.min(a.bursts, 12)))) lo = mid + 1; else hi = mid;
        }
        map.cells.push([lo, within(a, bytes)]);
      }
    }
    chart(at("onset"), top.kib, top.gap, "KiB per SM", null, (c, x, y) => {
      map.cells.forEach(([first, known], i) => {
        const l = x(i / n * top.kib), r = x((i + 1) / n * top.kib);
        c.fillStyle = known ? ink("--series") : ink("--grey");
        c.fillRect(l, y(first / n * top.gap), r - l + 0.5, y(0) - y(first / n * top.gap));
        if (!known) { c.fillStyle = ink("--faint"); c.fillRect(l, y(top.gap), r - l + 0.5, y(first / n * top.gap) - y(top.gap)); }
      });
      c.strokeStyle = ink("--paper"); c.fillStyle = ink("--mark"); c.lineWidth = 3;
      c.beginPath(); c.arc(x(a.bytes / 1024), y(a.gap / a.p.clock_mhz), 9, 0, 7); c.fill(); c.stroke();
    }, `Onset map: gap from 0 to ${text(top.gap)} microseconds against 0 to ${text(top.kib)} KiB per SM; the mark is at ${text(a.bytes / 1024)} KiB and ${text(a.gap / a.p.clock_mhz)} microseconds.`);
  }

  function update() {
    const a = asked(), m = modelOf(a.p), us = (cycles) => cycles / a.p.clock_mhz, shown = [];
    const found = m.predict(schedule(a)), worst = found.reduce((x, y) => y.issue - y.t0 > x.issue - x.t0 ? y : x);
    let words;
    if (!found.some((b) => b.stalled)) words = `Free: every burst takes ${text(us(worst.issue))} µs to issue.`;
    else {
      let low = 0, high = 2e3 * a.p.clock_mhz, below = 0, beyond = a.bytes / a.step;
      const gapHelps = !stalls(m, schedule(a, a.bytes, high));
      while (gapHelps && high - low > 0.01 * a.p.clock_mhz && high - low > 0.005 * high) { const mid = (low + high) / 2; if (stalls(m, schedule(a, a.bytes, mid))) low = mid; else high = mid; }
      while (beyond - below > 1) { const mid = (below + beyond) >> 1; if (stalls(m, schedule(a, mid * a.step))) beyond = mid; else below = mid; }
      const ways = [gapHelps ? `from a gap of ${text(us(high), 3)} µs` : "", below ? `up to ${text(below * a.step / 1024, 4)} KiB per SM` : ""].filter(Boolean);
      words = `Stalls: ${text(us(worst.issue))} µs instead of ${text(us(worst.t0))}. ${ways.length ? "Free " + ways.join(" or ") : "No gap and no size frees it"}.`;
    }
    at("answer").textContent = words;
    at("answer").className = "answer " + (found.some((b) => b.stalled) ? "fail" : "pass");
    const known = within(a, a.bytes);
    at("range").textContent = `${arrow(a.p.pair)}, ${a.producers} SMs × ${a.warps} warps, bursts of ${text(a.bytes / 1024, 4)} KiB per SM. ` +
      (known ? "Within the calibrated range." : "Outside the calibrated range: extrapolated, drawn grey.") + (a.p.holdout === "fail" ? " This pair's model missed its hold-out: do not use it." : "");
    const colour = known ? "--series" : "--grey", top = 1.15 * Math.max(...found.map((b) => us(b.issue))), t0 = us(found[found.length - 1].t0);
    chart(at("issue"), found.length, top, "bursts", t0, (c, x, y) => found.forEach((b, i) => {
      c.fillStyle = ink(b.stalled && known ? "--stalled" : colour);
      c.fillRect(x(i + 0.12), y(us(b.issue)), x(i + 0.88) - x(i + 0.12), y(0) - y(us(b.issue)));
    }), `Issue time of ${found.length} bursts, ${text(us(found[0].issue))} to ${text(us(worst.issue))} microseconds; T0 is ${text(t0)}.`);
    m.predict(schedule(a), Object.assign((now, bytes) => shown.push([us(now), bytes / 1e6]), { issue: found.map((b) => b.issue) }));
    const q = m.capacity(a.producers) / 1e6, most = Math.max(...shown.map((p) => p[1]), Number.isFinite(q) ? q : 0) * 1.15 || 1;
    const end = shown.length ? Math.max(shown[shown.length - 1][0], us(found[found.length - 1].start)) || 1 : 1;
    chart(at("backlog"), end, most, "µs", Number.isFinite(q) ? q : null, (c, x, y) => {
      c.strokeStyle = ink(colour); c.lineWidth = 3; c.beginPath(); c.moveTo(x(0), y(0));
      for (const [t, v] of shown) c.lineTo(x(t), y(v));
      c.stroke();
    }, `Backlog over ${text(end)} microseconds, at most ${text(Math.max(0, ...shown.map((p) => p[1])))} MB; Q is ${text(q)} MB.`);
    drawOnset(a, m);
    for (const e of document.querySelectorAll("[data-pair]")) e.dataset.pair === a.p.pair ? e.setAttribute("aria-current", "true") : e.removeAttribute("aria-current");
    history.replaceState(null, "", "#" + names.map((n) => `${n}=${encodeURIComponent(at(n).value)}`).join("&"));
  }

  function restore() {
    const state = new URLSearchParams(location.hash.slice(1));
    for (const n of names) if (state.has(n)) at(n).value = state.get(n);
    if (!at("pair").value) at("pair").selectedIndex = 0;
    return state.has("kib");
  }
  const file = () => {
    const a = asked(), [source, destination] = a.p.pair.split(">").map(Number);
    return JSON.stringify({ producers: a.producers, warps: a.warps, source, destination, start: "free",
      bursts: Array.from({ length: a.bursts }, () => ({ bytes: a.bytes, gap_cycles: a.gap })) });
  };
  async function copy(what) {
    try { await navigator.clipboard.writeText(what); at("said").textContent = "copied"; }
    catch { at("said").textContent = what; } // a file:// page may not copy: then it is shown
  }

  for (const p of data.pairs) at("pair").add(new Option(arrow(p.pair), p.pair));
  for (const name of Object.keys(PRESETS)) at("preset").add(new Option(name));
  at("sms").max = at("sms").value = data.pairs[0].smids;
  at("warps").value = data.pairs[0].warps;
  $("play").hidden = false;
  const opened = restore();
  for (const n of names) at(n).addEventListener("input", () => { at("preset").selectedIndex = 0; update(); });
  at("preset").addEventListener("change", () => {
    const chosen = PRESETS[at("preset").value];
    if (chosen) ["warps", "kib", "gap", "bursts"].forEach((n, i) => { at(n).value = chosen[i]; });
    update();
  });
  document.addEventListener("click", (event) => {
    const e = event.target.closest("[data-pair]");
    if (!e || !data.pairs.some((p) => p.pair === e.dataset.pair)) return;
    event.preventDefault();
    at("pair").value = e.dataset.pair;
    update();
  });
  function move(kib, gap) {
    at("kib").value = Math.max(0.5, Number(kib.toPrecision(4)));
    at("gap").value = Math.max(0, Number(gap.toPrecision(4)));
    update();
  }
  at("onset").addEventListener("pointerdown", (e) => {
    const box = at("onset").getBoundingClientRect(), x = (e.clientX - box.left) / box.width * 600, y = (e.clientY - box.top) / box.height * 260;
    move((x - 62) / 526 * map.top.kib, (226 - y) / 204 * map.top.gap);
  });
  at("onset").addEventListener("keydown", (e) => {
    const a = asked(), by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[e.key];
    if (!by) return;
    e.preventDefault();
    move((a.bytes + by[0] * a.step) / 1024, a.gap / a.p.clock_mhz + by[1] * 0.25);
  });
  at("json").addEventListener("click", () => copy(file()));
  at("command").addEventListener("click", () => copy(`echo '${file()}' > schedule.json && xstage predict . schedule.json`));
  window.addEventListener("hashchange", () => { if (restore()) update(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
  for (const t of document.querySelectorAll("table.sortable")) t.querySelectorAll("thead th").forEach((head, i) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending", value = (r) => parseFloat(r.cells[i].textContent.replace(/\u2009/g, ""));
      t.querySelectorAll("thead th").forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...t.tBodies[0].rows].sort((a, b) => (i && value(a) - value(b)) || a.cells[i].textContent.localeCompare(b.cells[i].textContent));
      t.tBodies[0].append(...(down ? rows.reverse() : rows));
    });
  });
  update();
  if (!opened) history.replaceState(null, "", location.pathname + location.search);
})();
