// Timelines of a report on canvases: zoom, pan, filter by unit, counters with their scale, waits by line of the program.
"use strict";
const dark = matchMedia("(prefers-color-scheme: dark)");
const LABELS = innerWidth < 640 ? 110 : 210, AXIS = 22, ROW = 15, COUNTER = 40, GAP = 3;

// pair: timelines that stand side by side, with one scale of cycles and of each counter.
function timeline(box, pair) {
  const data = JSON.parse(box.querySelector("script").textContent);
  const canvas = box.querySelector(".tracks"), pen = canvas.getContext("2d");
  const filter = box.querySelector("input"), tip = box.querySelector(".tip"), info = box.querySelector(".range");
  const state = {first: data.first, last: data.last, wanted: "", line: -1};
  const byTrack = data.tracks.map(() => []);
  for (const piece of data.slices) byTrack[piece[0]].push(piece);
  const values = data.tracks.map(() => []);
  for (const sample of data.samples) values[sample[0]].push(sample);
  let rows = [];

  function choose() {
    rows = [];
    let y = AXIS;
    data.tracks.forEach((track, number) => {
      if (!byTrack[number].length && !values[number].length) return;
      if (!(track.path + " " + track.label).toLowerCase().includes(state.wanted)) return;
      const height = track.counter ? COUNTER : ROW;
      rows.push({track, number, y, height});
      y += height + GAP;
    });
    canvas.style.height = Math.max(y + 4, AXIS + 20) + "px";
  }

  function at(cycle, width) {
    return LABELS + (cycle - state.first) / (state.last - state.first) * (width - LABELS - 8);
  }

  function grid(step) {
    for (const unit of [1, 2, 5]) if (step <= unit) return unit;
    return 10 * grid(step / 10);
  }

  function draw() {
    const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const ink = dark.matches ? "#e4e6ea" : "#1c1e21", rule = dark.matches ? "#444950" : "#d5d8dc";
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const step = Math.max(1, grid((state.last - state.first) / Math.max(2, (width - LABELS) / 110)));
    for (let cycle = Math.ceil(state.first / step) * step; cycle <= state.last; cycle += step) {
      const x = at(cycle, width);
      pen.fillStyle = rule;
      pen.fillRect(x, AXIS - 4, 1, height);
      pen.fillStyle = ink;
      pen.textAlign = x > width - 40 ? "right" : "center";
      pen.fillText(cycle.toLocaleString("en"), x, 9);
    }
    for (const row of rows) {
      pen.fillStyle = ink;
      pen.textAlign = "right";
      const middle = row.y + row.height / 2, room = LABELS - (row.track.counter ? 52 : 8);
      pen.fillText(fitted(row.track.label, room - 4), room, row.track.counter ? middle - 7 : middle);
      if (row.track.counter) pen.fillText(fitted(row.track.unit, room - 4), room, middle + 7);
      pen.save();
      pen.beginPath();
      pen.rect(LABELS, row.y, width - LABELS - 8, row.height);
      pen.clip();
      if (row.track.counter) area(row, width); else pieces(row, width);
      pen.restore();
      if (row.track.counter) {
        pen.fillStyle = ink;
        pen.fillText(short(row.most), LABELS - 4, row.y + 6);
        pen.fillText("0", LABELS - 4, row.y + row.height - 5);
        pen.fillStyle = rule;
        pen.fillRect(LABELS, row.y, width - LABELS - 8, 1);
        pen.fillRect(LABELS, row.y + row.height - 1, width - LABELS - 8, 1);
      }
    }
    for (const map of maps) drawMap(map);
    info.textContent = "cycles " + Math.round(state.first).toLocaleString("en") + " to "
      + Math.round(state.last).toLocaleString("en");
  }

  function fitted(text, room) {
    if (pen.measureText(text).width <= room) return text;
    while (text.length > 1 && pen.measureText(text + "\u2026").width > room) text = text.slice(0, -1);
    return text + "\u2026";
  }

  function short(value) {
    return value >= 10000 ? (value / 1000).toFixed(0) + "k" : String(+value.toPrecision(4));
  }

  function pieces(row, width) {
    let drawn = -1;
    for (const [, begin, end, name, , line] of byTrack[row.number]) {
      if (end < state.first || begin > state.last) continue;
      const x = at(begin, width), wide = Math.max(at(end, width) - x, 0.5);
      if (x + wide < drawn + 0.5) continue; // under what has been drawn
      drawn = x + wide;
      pen.globalAlpha = state.line >= 0 && line !== state.line ? 0.15 : 1;
      pen.fillStyle = dark.matches && data.colours[name] === data.idle ? data.idle_on_dark : data.colours[name];
      pen.fillRect(x, row.y, wide, row.height);
      if (wide > 34) {
        pen.fillStyle = data.inks[name];
        pen.textAlign = "left";
        pen.fillText(fitted(data.names[name], wide - 6), Math.max(x, LABELS) + 3, row.y + row.height / 2 + 0.5);
      }
    }
    pen.globalAlpha = 1;
  }

  function area(row, width) {
    const samples = values[row.number], bottom = row.y + row.height;
    row.most = pair.most[row.track.label] || 1;
    pen.fillStyle = data.area;
    pen.beginPath();
    pen.moveTo(LABELS, bottom);
    let height = bottom;
    for (const [, cycle, value] of samples) {
      const x = at(cycle, width);
      pen.lineTo(x, height);
      height = bottom - row.height * Math.min(value / row.most, 1);
      pen.lineTo(x, height);
    }
    const end = at(data.last, width);
    pen.lineTo(end, height);
    pen.lineTo(end, bottom);
    pen.fill();
  }

  // A map: a row a part, a column a sample, stronger where there is more; as wide as the tracks above it.
  const maps = [...box.querySelectorAll(".map")].map((surface, number) => ({surface, ...data.maps[number]}));
  for (const map of maps) {
    map.surface.addEventListener("pointermove", event => {
      const place = map.surface.getBoundingClientRect(), cycle = cycleAt(event.clientX - place.left, place.width);
      const row = Math.min(map.cells.length - 1, Math.floor((event.clientY - place.top) / place.height * map.cells.length));
      const column = map.at.findLastIndex(at => at <= cycle);
      const says = box.querySelectorAll(".cell")[maps.indexOf(map)];
      says.textContent = column < 0 ? "" : "\u2014 number " + row + ", cycle " + map.at[column].toLocaleString("en") + ": about "
        + short(Math.round(level(map, row, column) * map.most)) + " (most " + short(map.most) + ")";
    });
  }

  function level(map, row, column) {
    return parseInt(map.cells[row][column], 36) / 35;
  }

  function drawMap(map) {
    const surface = map.surface, ratio = devicePixelRatio || 1, width = surface.clientWidth, height = surface.clientHeight;
    surface.width = width * ratio;
    surface.height = height * ratio;
    const pen = surface.getContext("2d"), tall = surface.height / map.cells.length;
    pen.fillStyle = dark.matches ? "#22262b" : "#f0f2f5";
    pen.fillRect(LABELS * ratio, 0, (width - LABELS - 8) * ratio, surface.height);
    pen.fillStyle = dark.matches ? "#e4e6ea" : "#1c1e21";
    pen.font = 11 * ratio + "px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.fillText("0", (LABELS - 6) * ratio, 10 * ratio);
    pen.fillText(String(map.cells.length - 1), (LABELS - 6) * ratio, surface.height - 3 * ratio);
    pen.beginPath();
    pen.rect(LABELS * ratio, 0, (width - LABELS - 8) * ratio, surface.height);
    pen.clip();
    map.cells.forEach((cells, row) => {
      for (let column = 0; column < map.at.length; column++) {
        const share = level(map, row, column);
        if (!share) continue;
        const x = at(map.at[column], width) * ratio, end = at(map.at[column + 1] ?? data.last, width) * ratio;
        pen.fillStyle = "hsl(24 80% " + (dark.matches ? 16 + 50 * share : 90 - 48 * share) + "%)";
        pen.fillRect(x, row * tall, Math.max(end - x, 1), Math.max(tall, 1));
      }
    });
  }

  function cycleAt(x, width) {
    return state.first + (x - LABELS) / (width - LABELS - 8) * (state.last - state.first);
  }

  function show(first, last, quiet) {
    const span = Math.min(Math.max(last - first, 4), pair.span);
    state.first = Math.min(Math.max(first, data.first), data.first + pair.span - span);
    state.last = state.first + span;
    draw();
    if (!quiet) for (const other of pair.members) if (other !== api) other.follow(state, data);
  }

  function under(event) {
    const place = canvas.getBoundingClientRect(), x = event.clientX - place.left, y = event.clientY - place.top;
    const cycle = cycleAt(x, place.width);
    const row = rows.find(row => y >= row.y && y < row.y + row.height);
    return {cycle, row, inside: x >= LABELS};
  }

  function describe({cycle, row, inside}) {
    if (!row || !inside) return "";
    if (row.track.counter) {
      const sample = values[row.number].filter(sample => sample[1] <= cycle).pop();
      return sample ? row.track.label + ": " + short(sample[2]) + " " + row.track.unit : "";
    }
    const piece = byTrack[row.number].find(piece => piece[1] <= cycle && cycle <= piece[2]);
    if (!piece) return "";
    const [, begin, end, name, more, line] = piece;
    const place = line >= 0 ? ", at " + data.lines[line] : "";
    return data.names[name] + ": cycles " + begin.toLocaleString("en") + " to " + end.toLocaleString("en")
      + (data.details[more] ? ", " + data.details[more] : "") + place;
  }

  let held = null;
  canvas.addEventListener("wheel", event => {
    if (!event.ctrlKey && !event.shiftKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    const {cycle} = under(event), factor = Math.exp((event.deltaY || event.deltaX) * 0.002);
    show(cycle - (cycle - state.first) * factor, cycle + (state.last - cycle) * factor);
  }, {passive: false});
  canvas.addEventListener("pointerdown", event => {
    held = {x: event.clientX, first: state.first, last: state.last};
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => { held = null; });
  canvas.addEventListener("pointermove", event => {
    if (held) {
      const moved = (held.x - event.clientX) / (canvas.clientWidth - LABELS - 8) * (held.last - held.first);
      show(held.first + moved, held.last + moved);
    }
    tip.textContent = describe(under(event)) || "\u00a0";
  });
  canvas.addEventListener("dblclick", event => zoom(0.5, under(event).cycle));
  canvas.addEventListener("keydown", event => {
    const span = state.last - state.first, steps = {ArrowLeft: -0.2, ArrowRight: 0.2};
    if (event.key in steps) show(state.first + steps[event.key] * span, state.last + steps[event.key] * span);
    else if (event.key === "+" || event.key === "=") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else if (event.key === "0") show(data.first, data.first + pair.span);
    else return;
    event.preventDefault();
  });

  function zoom(factor, around) {
    const middle = around === undefined ? (state.first + state.last) / 2 : around;
    show(middle - (middle - state.first) * factor, middle + (state.last - middle) * factor);
  }

  box.querySelector(".in").addEventListener("click", () => zoom(0.5));
  box.querySelector(".out").addEventListener("click", () => zoom(2));
  box.querySelector(".all").addEventListener("click", () => show(data.first, data.first + pair.span));
  filter.addEventListener("input", () => { state.wanted = filter.value.trim().toLowerCase(); choose(); draw(); });
  for (const line of box.querySelectorAll("tr[data-line]")) line.addEventListener("click", () => {
    const number = +line.dataset.line;
    state.line = state.line === number ? -1 : number;
    for (const other of box.querySelectorAll("tr[data-line]"))
      other.classList.toggle("chosen", +other.dataset.line === state.line);
    draw();
  });
  new ResizeObserver(() => draw()).observe(canvas);
  dark.addEventListener("change", draw);
  const api = {
    follow(other, from) { // the same cycles since the beginning
      show(data.first + other.first - from.first, data.first + other.last - from.first, true);
    },
    start() {
      box.classList.add("live");
      choose();
      show(data.first, data.first + pair.span, true);
    },
  };
  pair.members.push(api);
  pair.span = Math.max(pair.span, data.last - data.first);
  data.tracks.forEach((track, number) => {
    if (track.counter) pair.most[track.label] = Math.max(pair.most[track.label] || 0, data.peaks[number]);
  });
  return api;
}

for (const beside of document.querySelectorAll(".pair")) {
  const pair = {members: [], span: 1, most: {}};
  for (const box of beside.querySelectorAll(".timeline")) timeline(box, pair);
  for (const member of pair.members) member.start();
}
