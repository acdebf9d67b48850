// The least contrast of any text of the page with the background that it stands on, as WCAG 2 measures it.
(() => {
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const layers = (element) => {
    const colours = [];
    for (let at = element; at; at = at.parentElement) colours.unshift(getComputedStyle(at).backgroundColor);
    return colours;
  };
  const luminance = (colours) => {
    paint.fillStyle = "#fff";
    paint.fillRect(0, 0, 1, 1);
    for (const colour of colours) {
      paint.fillStyle = colour;
      paint.fillRect(0, 0, 1, 1);
    }
    const [r, g, b] = [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3).map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let worst = { ratio: 21 };
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    if (
      !text ||
      !element.checkVisibility() ||
      element.closest("script, noscript, .skip, option, :disabled, canvas, [_echarts_instance_]")
    )
      continue;
    const below = layers(element);
    const [one, other] = [luminance([...below, getComputedStyle(element).color]), luminance(below)].sort(
      (a, b) => b - a,
    );
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < worst.ratio)
      worst = { ratio, text: element.textContent.slice(0, 60), where: `${element.tagName}.${element.className}` };
  }
  return worst;
})();
