"use strict";

const root = document.documentElement;
const palette = JSON.parse(document.getElementById("palette").textContent);
const system = matchMedia("(prefers-color-scheme: dark)");
const redraws = [];
let printing = false;

const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
const colours = () => palette[isDark() && !printing ? "dark" : "light"];
const redrawAll = () => redraws.forEach((redraw) => redraw());

/* A function from [0, 1] to colours that runs through anchors "#rrggbb", in the 127 shades that the pictures have. */
function ramp(anchors) {
  const stops = anchors.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const shades = Array.from({ length: 127 }, (_, shade) => {
    const place = (shade / 126) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    return stops[low].map((value, part) => value + (place - low) * (stops[low + 1][part] - value));
  });
  return (share) => shades[Math.min(Math.max(Math.floor(share * 127), 0), 126)];
}

/* Input pixels as sharp squares, several canvas pixels wide so that they stay sharp in print and when copied. */
function paint(canvas, width, height, colourAt) {
  const small = document.createElement("canvas");
  const zoom = Math.max(1, Math.round(640 / width));
  [small.width, small.height] = [width, height];
  [canvas.width, canvas.height] = [width * zoom, height * zoom];
  const image = small.getContext("2d").createImageData(width, height);
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      const colour = colourAt(x, y);
      if (!colour) continue;
      const at = 4 * (y * width + x);
      [image.data[at], image.data[at + 1], image.data[at + 2]] = colour;
      image.data[at + 3] = 255;
    }
  }
  small.getContext("2d").putImageData(image, 0, 0);
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
}

/* Channels as red, green and blue if there are three, otherwise as tiles of one diverging map. */
function paintInput(canvas, pixels, { channels, height, width }) {
  const area = height * width;
  if (channels === 3) {
    paint(canvas, width, height, (x, y) => [0, 1, 2].map((c) => 127.5 + pixels[c * area + y * width + x]));
    return;
  }
  const columns = Math.ceil(Math.sqrt(channels));
  const rows = Math.ceil(channels / columns);
  const colour = ramp(colours().diverging);
  paint(canvas, columns * (width + 1) - 1, rows * (height + 1) - 1, (x, y) => {
    const channel = Math.floor(y / (height + 1)) * columns + Math.floor(x / (width + 1));
    const [column, row] = [x % (width + 1), y % (height + 1)];
    if (channel >= channels || column === width || row === height) return null;
    return colour(0.5 + pixels[channel * area + row * width + column] / 254);
  });
}

/* Magnitude of the two-dimensional Fourier transform, summed over channels, zero frequency first. */
function fourier(pixels, { channels, height, width }) {
  const power = new Float64Array(height * width);
  const waves = (length) => Array.from({ length }, (_, k) => [Math.cos((2 * Math.PI * k) / length), Math.sin((2 * Math.PI * k) / length)]);
  const [across, down] = [waves(width), waves(height)];
  for (let channel = 0; channel < channels; channel += 1) {
    const real = new Float64Array(height * width);
    const imaginary = new Float64Array(height * width);
    for (let y = 0; y < height; y += 1) {
      for (let k = 0; k < width; k += 1) {
        for (let x = 0; x < width; x += 1) {
          const value = pixels[(channel * height + y) * width + x];
          const [cosine, sine] = across[(k * x) % width];
          real[y * width + k] += value * cosine;
          imaginary[y * width + k] -= value * sine;
        }
      }
    }
    for (let l = 0; l < height; l += 1) {
      for (let k = 0; k < width; k += 1) {
        let [a, b] = [0, 0];
        for (let y = 0; y < height; y += 1) {
          const [cosine, sine] = down[(l * y) % height];
          a += real[y * width + k] * cosine + imaginary[y * width + k] * sine;
          b += imaginary[y * width + k] * cosine - real[y * width + k] * sine;
        }
        power[l * width + k] += a * a + b * b;
      }
    }
  }
  return power.map(Math.sqrt);
}

function paintFourier(canvas, magnitude, { height, width }) {
  const largest = magnitude.reduce((a, b) => Math.max(a, b), 1e-12);
  const colour = ramp(colours().sequential);
  const centred = (at, length) => (at + length - Math.floor(length / 2)) % length;
  paint(canvas, width, height, (x, y) => colour(magnitude[centred(y, height) * width + centred(x, width)] / largest));
}

/* Draws in units of which there are so many, and stays sharp on a screen with several pixels for each. */
function sharpContext(canvas, width, height) {
  const sharpness = Math.max(2, window.devicePixelRatio || 1);
  [canvas.width, canvas.height] = [width * sharpness, height * sharpness];
  const context = canvas.getContext("2d");
  context.scale(sharpness, sharpness);
  return context;
}

function plotLines(canvas, lines, low, high) {
  const [width, height, edge] = [320, 140, 6];
  const context = sharpContext(canvas, width, height);
  const across = (at, count) => edge + ((width - 2 * edge) * at) / Math.max(count - 1, 1);
  const up = (value) => height - edge - ((height - 2 * edge) * (value - low)) / (high - low || 1);
  context.strokeStyle = colours().muted;
  context.lineWidth = 0.75;
  context.beginPath();
  context.moveTo(edge, up(0));
  context.lineTo(width - edge, up(0));
  context.stroke();
  context.lineWidth = 1.75;
  lines.forEach((line, index) => {
    context.strokeStyle = colours().lines[index % colours().lines.length];
    context.beginPath();
    line.forEach((value, at) => context.lineTo(across(at, line.length), up(value)));
    context.stroke();
  });
}

/* One bar for each input feature, up or down from zero. */
function plotBars(canvas, values) {
  const [width, height, edge] = [640, 180, 6];
  const context = sharpContext(canvas, width, height);
  const [step, middle] = [(width - 2 * edge) / values.length, height / 2];
  values.forEach((value, at) => {
    context.fillStyle = colours().lines[value < 0 ? 0 : 1];
    const reach = ((middle - edge) * value) / 127;
    context.fillRect(edge + (at + 0.1) * step, reach < 0 ? middle : middle - reach, 0.8 * step, Math.abs(reach));
  });
  context.fillStyle = colours().muted;
  context.fillRect(edge, middle - 0.4, width - 2 * edge, 0.8);
}

const digits = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const raised = (power) => String(power).replace("-", "⁻").replace(/\d/g, (digit) => digits[digit]);

/* "(3.78 ± 0.30) × 10⁻⁶" */
function inWords(value, error) {
  if (!value) return "0";
  const power = Math.floor(Math.log10(Math.abs(value)));
  const plain = power > -3 && power < 5;
  const unit = plain ? 1 : 10 ** power;
  const decimals = plain ? Math.max(0, 2 - power) : 2;
  const number = (value / unit).toFixed(decimals);
  const pair = error == null ? number : `${number} ± ${(error / unit).toFixed(decimals)}`;
  return plain ? pair : `${error == null ? pair : `(${pair})`} × 10${raised(power)}`;
}

function describe(data, index) {
  if (!data.values) return [];
  if (!data.values[index]) return ["no variance in these draws"];
  const words = [`variance ${inWords(data.values[index], data.errors ? data.errors[index] : null)}`];
  if (data.mean) words.push(`${inWords(data.values[index] / data.mean)} × the mean direction`);
  return words;
}

function startGallery(gallery) {
  const part = (name) => document.getElementById(`${gallery.id}-${name}`);
  const data = JSON.parse(part("data").textContent);
  const pixels = Int8Array.from(atob(data.pixels), (letter) => letter.charCodeAt(0));
  const size = data.channels * data.height * data.width;
  const [slider, label, key] = [part("slider"), part("label"), part("key")];
  const isSignal = Math.min(data.height, data.width) === 1;

  function redraw() {
    const index = slider.value - 1;
    const direction = pixels.subarray(index * size, (index + 1) * size);
    const magnitude = data.frequencies ? fourier(direction, data) : null;
    if (data.bars) {
      plotBars(part("pixels"), direction);
    } else if (isSignal) {
      const length = size / data.channels;
      const lines = Array.from({ length: data.channels }, (_, c) => direction.subarray(c * length, (c + 1) * length));
      plotLines(part("pixels"), lines, -127, 127);
      if (magnitude) {
        const half = magnitude.subarray(0, Math.floor(length / 2) + 1);
        plotLines(part("fourier"), [half], 0, half.reduce((a, b) => Math.max(a, b), 1e-12));
      }
    } else {
      paintInput(part("pixels"), direction, data);
      if (magnitude) paintFourier(part("fourier"), magnitude, data);
      key.firstElementChild.textContent = `−${data.scales[index].toPrecision(2)}`;
      key.lastElementChild.textContent = `+${data.scales[index].toPrecision(2)}`;
    }
    const known = index < data.resolved;
    part("pixels").parentElement.parentElement.classList.toggle("unresolved", !known);
    const lines = [`Direction ${index + 1} of ${size}`, ...describe(data, index), ...(known ? [] : ["not resolved by these draws"])];
    label.replaceChildren(...lines.map((words, place) => {
      const line = document.createElement(place ? "span" : "b");
      line.textContent = words;
      return line;
    }));
    slider.setAttribute("aria-valuetext", lines.join(", "));
    part("previous").disabled = index === 0;
    part("next").disabled = index + 1 === Number(slider.max);
  }
  let waiting = false;
  function redrawSoon() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; redraw(); });
  }
  function step(by) {
    slider.value = Number(slider.value) + by;
    redrawSoon();
  }
  slider.addEventListener("input", redrawSoon);
  part("previous").addEventListener("click", () => step(-1));
  part("next").addEventListener("click", () => step(1));
  gallery.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.target === slider || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    step(by);
  });
  redraws.push(redraw);
  redraw();
}

const toggle = document.getElementById("theme");
function showTheme() {
  toggle.textContent = isDark() ? "Light" : "Dark";
  toggle.setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
  redrawAll();
}
toggle.hidden = false;
toggle.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; showTheme(); });
system.addEventListener("change", showTheme);

/* A link into something that is folded unfolds it. */
function unfoldTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", unfoldTarget);

/* A button beside each command and citation copies it; where the clipboard is closed, the text is selected instead. */
document.querySelectorAll(".copied").forEach((block) => {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const text = block.querySelector("code").textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(block.querySelector("code"));
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  block.append(button);
});

let unfolded = [];
addEventListener("beforeprint", () => {
  printing = true;
  unfolded = [...document.querySelectorAll("details:not([open])")];
  unfolded.forEach((folded) => { folded.open = true; });
  redrawAll();
});
addEventListener("afterprint", () => {
  printing = false;
  unfolded.forEach((folded) => { folded.open = false; });
  redrawAll();
});
document.querySelectorAll(".gallery").forEach(startGallery);
