// The node model in the browser: model/node/loop.py, with issue_table.py and the parts of predict.py that lead to it, line by line.
// A test holds it against Python. Cycles and bytes inside; a schedule is {producers, warps, start, bursts: [{bytes, gap, start_ns}]}.
"use strict";
const NodeModel = (() => {
  const FAR = 1e300, TIE = 0.25, WIDE = 34, CLEAR = 12, OWN_PACE = 1.2, STALLED = 1.1;

  const sum = (x) => x.reduce((a, b) => a + b, 0);
  const median = (x) => {
    const s = [...x].sort((a, b) => a - b), m = s.length >> 1;
    return s.length % 2 ? s[m] : (s[m - 1] + s[m]) / 2;
  };
  const interpolate = (x, xs, ys) => {
    if (x <= xs[0]) return ys[0];
    for (let i = 1; i < xs.length; i++) if (x <= xs[i]) return ys[i - 1] + (ys[i] - ys[i - 1]) * (x - xs[i - 1]) / (xs[i] - xs[i - 1]);
    return ys[ys.length - 1];
  };

  // One warp count's issue time for 0 to the longest measured number of stores (issue_table._row).
  function tableRow(t, row, slope) {
    const known = new Map(), longest = Math.max(...t.stores), g = t.group;
    t.stores.forEach((n, i) => { if (row[i] !== null) known.set(n, row[i]); });
    const all = [...known.keys()].sort((a, b) => a - b), whole = all.filter((n) => n && n % g === 0), last = all[all.length - 1];
    const saved = Array.from({ length: g }, (_, r) => {
      const less = r ? all.filter((n) => n % g === r && known.has(n - r + g)).map((n) => known.get(n - r + g) - known.get(n)) : [];
      return less.length ? median(less) : 0;
    });
    const out = [];
    for (let n = 0; n <= longest; n++) {
      const full = Math.ceil(n / g) * g;
      if (known.has(n)) out.push(known.get(n));
      else if (n > last) out.push(known.get(last) + (n - last) * slope);
      else {
        const below = all.filter((m) => m < n), low = below.length ? below[below.length - 1] : 0, high = all.find((m) => m > n);
        const turns = whole.length >= 2 && whole[0] <= full && full <= whole[whole.length - 1];
        if (turns && known.get(high) - (known.get(low) || 0) <= OWN_PACE * t.store_cycles * (high - low))
          out.push(interpolate(full, whole, whole.map((m) => known.get(m))) - saved[n % g]);
        else out.push(interpolate(n, all, all.map((m) => known.get(m))));
      }
    }
    return out;
  }

  function dense(t) {
    const most = t.warps[t.warps.length - 1], slope = Array.from({ length: most + 1 }, (_, w) => Math.max(t.store_cycles, t.port_cycles * w));
    const later = t.following.map((row, i) => row.map((v, j) => v === null ? t.fresh[i][j] : v));
    const cells = [t.fresh, later].map((kind) => {
      const rows = t.warps.map((w, i) => tableRow(t, kind[i], slope[w]));
      return slope.map((_, w) => rows[0].map((_, n) => interpolate(w, t.warps, rows.map((r) => r[n]))));
    });
    return { cells, slope, most, longest: Math.max(...t.stores) };
  }

  // A pair's constants as the page holds them: {node, issue, table, units (of each smid, ascending), scores, clock_mhz}.
  function make(p) {
    const m = p.node, clock = p.clock_mhz, issue = p.issue, table = dense(p.table);
    const link = m.link_gb_per_s * 1e3 / clock, blur = 0.3 * m.service_spread, evensOut = 128e3;
    const capacityOf = (n) => n * (m.sm_capacity_bytes + m.unit_capacity_bytes / Math.max(n, 2));
    const free = (w, n, fresh) => {
      if (!n && !p.table.stores.includes(0)) return issue.empty + issue.empty_per_warp * (w - 1);
      const inside = Math.min(w, table.most), within = Math.min(n, table.longest);
      return table.cells[fresh ? 0 : 1][inside][within] + (n - within) * table.slope[inside] + p.table.port_cycles * (w - inside) * n;
    };
    const t0 = (w, n, fresh) => {
      const size = w * n * issue.store_bytes, held = (size - capacityOf(1)) / m.sm_bytes_per_cycle + m.credit_cycles;
      return Math.max(free(w, n, fresh), size > 0 ? held : 0);
    };

    // Units that hold producers, ascending in members / weight: the order in which more of the link stops helping them.
    function unitsOf(producers) {
      const all = p.units.length, count = new Array(p.scores.length).fill(0);
      if (Array.isArray(producers)) for (const i of producers) count[p.units[i]]++;
      else for (let i = 0; i < producers; i++) count[p.units[Math.floor(i * all / producers)]]++;
      return count.map((members, u) => ({ members, logWeight: m.service_spread * p.scores[u], capacity: capacityOf(members) }))
        .filter((u) => u.members)
        .sort((a, b) => a.members - b.members || a.logWeight - b.logWeight)
        .sort((a, b) => a.members / Math.exp(a.logWeight) - b.members / Math.exp(b.logWeight));
    }

    const capacity = (producers) => {
      const units = unitsOf(producers), k = sum(units.map((u) => u.members));
      return k * m.sm_bytes_per_cycle <= link ? Infinity : sum(units.map((u) => u.capacity)) + m.link_buffer_bytes - link * m.credit_cycles;
    };

    function calm(units, k, bursts, timed, out) {
      const total = sum(units.map((u) => Math.exp(u.logWeight)));
      let least = m.sm_bytes_per_cycle, room = FAR;
      for (const u of units) {
        least = Math.min(least, Math.exp(u.logWeight) / u.members * link / total);
        room = Math.min(room, u.capacity / u.members);
      }
      const most = Math.min(k * m.sm_bytes_per_cycle, link);
      let begin = timed ? bursts[0].deadline : 0, backlog = 0, all = 0, before = 0, end = 0;
      for (let i = 0; i < bursts.length; i++) {
        const b = bursts[i];
        if (i) {
          begin = timed ? Math.max(end + issue.turnaround, b.deadline) : end + Math.max(issue.turnaround, b.gap + issue.gap_overhead);
          backlog = Math.max(backlog - least * (begin - before), 0);
          all = Math.max(all - most * (begin - before), 0);
        }
        const now = backlog + b.load;
        const hidden = backlog > 0 ? Math.max(least * (m.credit_cycles - b.free), 0) + CLEAR * blur * backlog : 0;
        if (now + hidden > room + b.unheld) return false;
        end = begin + b.free;
        all += b.load * k;
        out[i] = { issue: b.free, slowest: b.free, start: begin, left: Math.max(all - most * b.free, 0) };
        before = begin;
        backlog = now;
      }
      return true;
    }

    function fairLevel(units, inflow, total) {
      if (inflow <= link) return FAR;
      let level = 0, before = 0, after = total;
      for (const u of units) if (u.active > 0) {
        if (after > 1e-12) level = Math.max(level, (link - before) / after);
        before += u.wanted;
        after -= u.active;
      }
      return level;
    }

    function run(units, k, bursts, timed, out, watch) {
      const n = bursts.length, rate = m.sm_bytes_per_cycle, buffer = m.link_buffer_bytes, opening = timed ? bursts[0].deadline : 0;
      for (const u of units) Object.assign(u, { begin: opening, due: opening, backlog: 0, floor: 0, wanted: 0, active: 0, rate: 0, burst: 0, ahead: FAR });
      for (let i = 0; i < n; i++) out[i] = { issue: 0, slowest: 0, start: 0, left: 0 };
      let now = 0, level = 0, inflow = 0, steps = 0, waiting = units.length, changed = true, wasFull = false;
      while (waiting > 0 && steps < 4e6) {
        steps++;
        const full = level >= buffer * (1 - 1e-9);
        if (changed || full !== wasFull) {
          inflow = 0;
          let total = 0, fair = FAR;
          for (const u of units) { inflow += u.wanted; total += u.active; }
          if (full && total > 0) {
            fair = link / total;
            if (units.some((u) => u.wanted < u.active * fair)) fair = fairLevel(units, inflow, total);
          }
          for (const u of units) u.rate = Math.min(u.wanted, u.active * fair);
          changed = false;
          wasFull = full;
        }
        let nearest = FAR;
        for (const u of units) {
          u.ahead = Math.min(u.rate > 0 ? (u.backlog - u.floor) / u.rate : FAR, u.due - now);
          if (u.ahead < nearest) nearest = u.ahead;
        }
        if (nearest >= FAR / 2) break;
        let growth = inflow - link, dt = Math.max(nearest, 0);
        if (full && growth >= 0) growth = 0;
        if (growth > 0) dt = Math.min(dt, (buffer - level) / growth);
        const began = now;
        now += dt;
        level = Math.min(Math.max(level + growth * dt, 0), buffer);
        for (const u of units) u.backlog = Math.max(u.backlog - u.rate * dt, 0);
        if (watch && dt > 0) watch(now, level + sum(units.map((u) => {
          // A burst joins its queue in whole when it begins; what its unit has not issued yet is no backlog.
          const going = u.due === FAR, b = going ? u.burst : u.burst - 1;
          return b < 0 ? 0 : Math.max(0, u.backlog - u.members * bursts[b].load * Math.min(1, Math.max(0, 1 - (now - (going ? u.begin : u.was)) / watch.issue[b])));
        })));
        for (const u of units) {
          if (u.ahead > dt + TIE) continue;
          const b = bursts[u.burst], held = u.backlog;
          let r = u.rate, known = 0;
          if (u.floor > 0) { // the last store of the burst has room
            known = began + u.ahead + m.credit_cycles;
            u.floor = 0;
          } else if (u.due <= now + TIE) { // the burst begins
            u.backlog = held + b.load * u.members;
            u.due = FAR;
            if (u.backlog > 0) {
              u.wanted = u.members * rate;
              u.active = Math.exp(u.logWeight * evensOut / (evensOut + b.load));
              changed = true;
            }
            let over = u.backlog - u.capacity - b.unheld * u.members;
            if (held > TIE * r) {
              const wide = blur * held + 1e-9, hidden = r * (m.credit_cycles - b.free), x = (over + hidden) / wide;
              if (x < -WIDE) over = -hidden;
              else if (x < WIDE) over = wide * (Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)))) - hidden;
              known = u.begin + m.credit_cycles + over / r;
            } else r = Math.min(rate, link / k) * u.members;
            if (over > 0) {
              u.floor = Math.max(u.backlog - over, 1e-6);
              continue;
            }
          } else { // its queue has run empty
            u.backlog = u.wanted = u.active = 0;
            changed = true;
            continue;
          }
          const end = Math.max(u.begin + b.free, known), o = out[u.burst];
          o.issue += (end - u.begin) * u.members;
          o.slowest = Math.max(o.slowest, end - u.begin);
          o.start += u.begin * u.members;
          o.left += Math.max(u.backlog - r * (end - now), 0);
          if (u.burst + 1 === n) { waiting--; continue; }
          const next = bursts[u.burst + 1];
          let least = issue.turnaround;
          if (known > u.begin + b.free + TIE)
            least += (issue.stall_turnaround * issue.store_bytes + b.unheld) * Math.max(u.members / r - 1 / rate, 0);
          u.burst++;
          u.was = u.begin;
          u.begin = u.due = timed ? Math.max(end + least, next.deadline) : end + Math.max(least, next.gap + issue.gap_overhead);
        }
      }
      for (const o of out) { o.issue /= k; o.start /= k; }
    }

    // Return per burst: t0, issue, slowest (cycles), start (cycles after time zero), left (bytes); `watch` hears of every step.
    function predict(s, watch) {
      const units = unitsOf(s.producers), k = sum(units.map((u) => u.members)), alone = s.start === "isolated", timed = s.start === "timed";
      const bursts = s.bursts.map((b, i) => {
        const n = Math.floor(b.bytes / (s.warps * issue.store_bytes)), fresh = alone || i === 0;
        return { load: b.bytes, gap: b.gap || 0, deadline: (b.start_ns || 0) * clock / 1e3, free: free(s.warps, n, fresh), t0: t0(s.warps, n, fresh),
          unheld: n % issue.unroll > 0 ? issue.tail_unheld * s.warps * issue.store_bytes : 0 };
      });
      const found = [];
      for (const part of alone ? bursts.map((b) => [b]) : [bursts]) {
        const out = new Array(part.length);
        if (watch || !calm(units, k, part, timed, out)) run(units, k, part, timed, out, watch);
        found.push(...out);
      }
      return found.map((o, i) => ({ ...o, t0: bursts[i].t0, stalled: o.issue > STALLED * bursts[i].t0 }));
    }
    return { predict, capacity, clock, lag: issue.start_lag_ns, rate: (k) => Math.min(k * m.sm_bytes_per_cycle * clock / 1e3, m.link_gb_per_s) };
  }
  return { make };
})();
