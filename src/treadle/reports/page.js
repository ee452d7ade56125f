"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const columns = data.columns, ids = columns[0].values, count = ids.length;
  const rowOf = new Map(ids.map((id, row) => [String(id), row]));
  const body = document.getElementById("rows"), frame = document.getElementById("frame");
  const dialog = document.getElementById("detail");
  dialog.classList.toggle("two", data.sides.length > 1);
  const many = count > data.inHtml;
  const made = many || !body ? [] : [...body.children];
  let order = ids.map((_, row) => row), sorted = null, filter = 0, wanted = "", height = 37;

  const SVG = "http://www.w3.org/2000/svg";
  const node = (name, attributes = {}, ...children) => {
    const each = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) each.setAttribute(key, value);
    each.append(...children);
    return each;
  };
  const drawn = (name, attributes = {}, ...children) => {
    const each = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) each.setAttribute(key, value);
    each.append(...children);
    return each;
  };

  // -- a cell, as page.py writes it ------------------------------------------------------------------------------
  const text = (column, row) => {
    const value = column.values[row];
    if (column.kind === "mark") return data.outcomes[column.words[value]].join(" ");
    if (column.kind === "text") return column.words[value];
    if (column.odd && column.odd[row]) return column.odd[row];
    if (value === null) return "–";
    if (column.kind === "id") return String(value);
    const many = {minimumFractionDigits: column.digits, maximumFractionDigits: column.digits};
    const shown = Math.abs(value).toLocaleString("en-US", many), zero = !/[1-9]/.test(shown);
    return (zero ? "" : value < 0 ? "−" : column.sign ? "+" : "") + shown;
  };
  const bar = (column, row) => {
    const [low, high] = column.ends, value = column.values[row];
    const share = (each) => 100 * (Math.min(high, Math.max(low, each)) - low) / (high - low);
    const there = value !== null && high > low;
    const [zero, at] = there ? [share(0), share(value)] : [0, 0];
    const width = there ? Math.max(1, Math.round(Math.abs(at - zero))) : 0;
    return drawn("svg", {class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true"},
      drawn("rect", {x: Math.round(Math.min(zero, at)), width, height: 8}));
  };
  const cell = (column, row) => {
    const each = node("td", {class: `${column.kind} w${column.wide}`});
    if (column.kind === "id") each.append(node("a", {href: "#e" + ids[row]}, ids[row]));
    else if (column.kind === "mark") {
      const [sign, word] = data.outcomes[column.words[column.values[row]]];
      each.append(node("i", {"aria-hidden": "true"}, sign), " " + word);
    } else if (column.kind === "bar") each.append(bar(column, row), text(column, row));
    else each.append(text(column, row));
    return each;
  };
  const make = (row, place) => made[row] ||
    node("tr", {id: "e" + ids[row], "aria-rowindex": place + 2}, ...columns.map((column) => cell(column, row)));

  // -- the table -------------------------------------------------------------------------------------------------
  const gap = (rows) => {
    const each = node("tr", {class: "gap", "aria-hidden": "true"}, node("td", {colspan: columns.length}));
    each.firstChild.style.height = rows * height + "px";
    return each;
  };
  const show = () => {
    if (!body) return;
    if (!many) return body.replaceChildren(...order.map(make));
    const held = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const first = Math.max(0, Math.floor(frame.scrollTop / height) - 20);
    const last = Math.min(order.length, first + Math.ceil(frame.clientHeight / height) + 40);
    const rows = order.slice(first, last).map((row, i) => make(row, first + i));
    body.replaceChildren(gap(first), ...rows, gap(order.length - last));
    const again = held && body.querySelector(`a[href="${held}"]`);
    if (again) again.focus({preventScroll: true});
  };
  const arrange = () => {
    order = (data.filters[filter] ? data.filters[filter][1] : []).filter((row) => String(ids[row]).startsWith(wanted));
    if (sorted) {
      const {column, down} = sorted, values = column.values;
      const key = column.kind === "text" || column.kind === "mark" ? (row) => text(column, row) : (row) => values[row];
      const less = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
      order.sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === null || y === null) return (x === null) - (y === null) || a - b;
        return (down ? less(y, x) : less(x, y)) || a - b;
      });
    }
    if (many) frame.scrollTop = 0;
    show();
    const said = document.getElementById("found");
    if (said) said.textContent = `${order.length.toLocaleString("en-US")} shown`;
  };
  const tools = () => {
    const buttons = data.filters.map(([name, rows], i) => {
      const each = node("button", {type: "button", "aria-pressed": i === 0}, `${name} ${rows.length.toLocaleString("en-US")}`);
      each.addEventListener("click", () => {
        filter = i;
        buttons.forEach((other, j) => other.setAttribute("aria-pressed", i === j));
        arrange();
      });
      return each;
    });
    const input = node("input", {type: "search", inputmode: "numeric", autocomplete: "off"});
    input.addEventListener("input", () => { wanted = input.value.trim(); arrange(); });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && order.length) location.hash = "e" + (rowOf.has(wanted) ? wanted : ids[order[0]]);
    });
    frame.before(node("div", {class: "tools"}, ...buttons, node("label", {}, "Number", input),
      node("span", {id: "found", class: "note", role: "status"})));
    frame.querySelectorAll("thead th").forEach((head, i) => {
      const button = node("button", {type: "button"}, ...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const number = !["id", "text", "mark"].includes(columns[i].kind);
        const same = sorted && sorted.column === columns[i];
        sorted = {column: columns[i], down: same ? !sorted.down : number};
        frame.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
        arrange();
      });
    });
  };

  // -- one episode -----------------------------------------------------------------------------------------------
  const copies = (place) => {
    for (const each of place.querySelectorAll(".command")) {
      const button = node("button", {type: "button"}, "Copy"), code = each.querySelector("code");
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(code.textContent);
        } catch {
          getSelection().selectAllChildren(code);
          document.execCommand("copy");
        }
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
      each.append(button);
    }
  };
  const curve = ([points, low, high], film) => {
    const bytes = [...atob(points)].map((each) => each.charCodeAt(0)), last = Math.max(1, bytes.length - 1);
    const path = bytes.map((each, i) => `${(1000 * i / last).toFixed(1)},${(100 - each / 255 * 96 - 2).toFixed(1)}`);
    const mark = drawn("line", {y1: 0, y2: 100, x1: -9, x2: -9});
    const chart = drawn("svg", {class: "curve", viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img",
      "aria-label": `The return so far, between ${low} and ${high}`}, drawn("polyline", {points: path.join(" ")}), mark);
    if (film && film.tagName === "VIDEO") {
      const move = (share) => { mark.setAttribute("x1", 1000 * share); mark.setAttribute("x2", 1000 * share); };
      film.addEventListener("timeupdate", () => move(film.currentTime / (film.duration || 1)));
      chart.addEventListener("click", (event) => {
        const box = chart.getBoundingClientRect(), share = (event.clientX - box.left) / box.width;
        if (film.duration) film.currentTime = share * film.duration;
        move(share);
      });
    }
    return [node("h3", {}, "Return so far"), chart,
      node("p", {class: "scale"}, node("span", {}, "first step"), node("span", {}, `${low} to ${high}`), node("span", {}, "last step"))];
  };
  const about = (side, row) => {
    const id = side.names[row], found = [];
    if (side.name) found.push(node("h3", {}, `${side.name}, episode ${id}`));
    const uri = side.films[id];
    const video = uri && (uri.startsWith("data:video") || uri.endsWith(".mp4"));
    const film = uri && node(video ? "video" : "img", video ? {src: uri, controls: "", playsinline: ""}
      : {src: uri, alt: `Film of episode ${id}`});
    if (film) found.push(film);
    if (side.errors[id]) found.push(node("h3", {}, "Why it could not be played"), node("p", {}, node("code", {}, side.errors[id])));
    if (side.curves[id]) found.push(...curve(side.curves[id], film));
    found.push(node("h3", {}, "Play it again"), node("p", {class: "command"}, node("code", {}, `${side.replay} ${id}`)));
    return found;
  };
  const open = (row) => {
    const place = order.indexOf(row);
    const step = (name, by) => {
      const each = node("button", {type: "button", "aria-label": name}, by < 0 ? "←" : "→");
      const other = place < 0 ? undefined : order[place + by];
      each.disabled = other === undefined;
      each.addEventListener("click", () => { location.replace("#e" + ids[other]); });
      return each;
    };
    const close = node("button", {type: "button"}, "Close");
    close.addEventListener("click", () => dialog.close());
    const facts = columns.slice(1).map((column) => node("div", {}, node("dt", {}, column.name),
      node("dd", {}, text(column, row) + (column.unit && column.values[row] !== null ? data.unit + column.unit : ""))));
    const sides = data.sides.map((side) => node("div", {class: "side"}, ...about(side, row)));
    const inside = node("div", {class: "body"}, node("dl", {class: "facts"}, ...facts), node("div", {class: "sides"}, ...sides));
    const held = dialog.open && document.activeElement && document.activeElement.getAttribute("aria-label");
    dialog.replaceChildren(node("div", {class: "head"}, node("h2", {id: "which"}, `Episode ${ids[row]}`),
      step("Previous episode", -1), step("Next episode", 1), close), inside);
    copies(dialog);
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    const again = held && dialog.querySelector(`button[aria-label="${held}"]:enabled`);
    (again || close).focus();
  };
  const address = () => {
    const row = rowOf.get(location.hash.slice(2));
    if (location.hash.startsWith("#e") && row !== undefined) open(row);
    else if (dialog.open) dialog.close();
  };
  dialog.addEventListener("close", () => {
    const id = location.hash.slice(1), row = rowOf.get(id.slice(1));
    if (!/^e\d+$/.test(id)) return;
    history.replaceState(null, "", " ");
    if (many && row !== undefined) {
      const place = order.indexOf(row), top = place * height;
      if (place >= 0 && (top < frame.scrollTop || top > frame.scrollTop + frame.clientHeight - 2 * height))
        frame.scrollTop = top - frame.clientHeight / 2;
      show();
    }
    const link = body && body.querySelector(`a[href="#${id}"]`);
    if (link) link.focus();
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  addEventListener("hashchange", address);

  // -- the strip -------------------------------------------------------------------------------------------------
  const strip = document.getElementById("strip");
  if (strip) {
    const hover = document.getElementById("hover");
    const at = (event) => {
      const box = strip.getBoundingClientRect(), size = (box.width + 2 * box.width / strip.viewBox.baseVal.width) / data.across;
      const column = Math.floor((event.clientX - box.left) / size), line = Math.floor((event.clientY - box.top) / size);
      const row = line * data.across + column;
      return row >= 0 && row < count && column < data.across ? row : -1;
    };
    strip.addEventListener("click", (event) => { const row = at(event); if (row >= 0) location.hash = "e" + ids[row]; });
    strip.addEventListener("mousemove", (event) => {
      const row = at(event);
      hover.textContent = row < 0 ? "" : `Episode ${ids[row]}: ` + columns.slice(2)
        .filter((column) => column.kind !== "text").map((column) => column.kind === "mark"
          ? text(column, row).slice(2) : `${column.name} ${text(column, row)}${column.unit ? data.unit + column.unit : ""}`).join(", ");
    });
    strip.addEventListener("mouseleave", () => { hover.textContent = ""; });
  }

  if (body) {
    body.addEventListener("click", (event) => {
      const row = event.target.closest("tr[id]");
      if (row && !event.target.closest("a") && !String(getSelection())) location.hash = row.id;
    });
    tools();
    if (many) {
      frame.className = "many";
      frame.tabIndex = 0;
      frame.setAttribute("role", "region");
      frame.setAttribute("aria-labelledby", "table");
      frame.querySelector("table").setAttribute("aria-rowcount", count + 1);
      show();
      if (body.children[1]) height = body.children[1].getBoundingClientRect().height || height;
      frame.addEventListener("scroll", () => requestAnimationFrame(show), {passive: true});
      addEventListener("resize", show);
    }
    arrange();
  }
  copies(document.querySelector("main"));
  address();
})();
