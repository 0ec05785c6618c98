#!/usr/bin/env bash
# The page of experiments in a browser: curves are drawn, nothing is wider than the window at 1280 and 400 pixels, text is
# readable in light and dark.
. "$(dirname "$0")/support.sh"
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
[ -n "$browser" ] || { echo "SKIP: no chromium"; exit 77; }

sed 's#"../induction.kv"#"'"$PWD"'/models/induction.kv"#; s/--steps 400/--steps 60/' models/experiments/example.exp >"$work/page.exp"
expect 1 experiment "$work/page.exp" fig2 theorem2 -o "$work/r"

# The page in frames of both widths; a script of the test measures them.
python3 - "$work/r/all.html" "$work/look.html" <<'EOF'
import html, sys
page = html.escape(open(sys.argv[1]).read(), quote=True)
frames = "".join(f'<iframe id="w{w}" style="width:{w}px;height:900px;border:0" srcdoc="{page}"></iframe>' for w in (1280, 400))
script = """
function luminance(c) {
  const v = c.match(/[0-9.]+/g).slice(0, 3).map(x => (x /= 255) <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2];
}
function contrast(a, b) {
  const x = luminance(a), y = luminance(b);
  return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
}
const errors = [];
window.addEventListener("error", e => errors.push(String(e.message)));
window.addEventListener("load", () => {
  const out = {errors};
  for (const w of [1280, 400]) {
    const d = document.getElementById("w" + w).contentDocument, back = getComputedStyle(d.body).backgroundColor;
    out[w] = {
      scroll: d.documentElement.scrollWidth,
      figures: d.querySelectorAll("svg").length,
      curves: [...d.querySelectorAll("svg path.line")].filter(p => p.getBBox().width > 20).length,
      wide: [...d.querySelectorAll("h1,h2,p,figure,.card,.legend")].filter(e => e.getBoundingClientRect().right > w + 1).length,
      text: Math.min(...[...d.querySelectorAll("svg text")].map(e => e.getBoundingClientRect().height)),
      ink: contrast(getComputedStyle(d.body).color, back),
      soft: contrast(getComputedStyle(d.querySelector("p")).color, back),
      back: luminance(back)};
  }
  const pre = document.createElement("pre");
  pre.id = "result";
  pre.textContent = JSON.stringify(out);
  document.body.append(pre);
});
"""
open(sys.argv[2], "w").write(f"<!doctype html><meta charset=utf-8><body><script>{script}</script>{frames}</body>")
EOF
for scheme in 0 1; do # dark, light
  HOME=$work timeout 60 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/profile" \
    --blink-settings=preferredColorScheme=$scheme --virtual-time-budget=4000 --dump-dom "file://$work/look.html" \
    >"$work/dom" 2>"$work/browser" || { echo "SKIP: the browser does not start"; exit 77; }
  python3 - "$work/dom" $scheme <<'EOF' || fail "the page in a browser"
import html, json, re, sys
found = re.search(r'<pre id="result">(.*?)</pre>', open(sys.argv[1]).read(), re.S)
assert found, "the script has not run"
out = json.loads(html.unescape(found.group(1)))
print(out)
assert not out["errors"], out
for width in ("1280", "400"):
    o = out[width]
    assert o["scroll"] <= int(width), "scrolls sideways"
    assert not o["wide"], "something is cut off"
    assert o["figures"] >= 7 and o["curves"] >= 8, "curves are missing"
    assert o["text"] > 9, "figures have tiny letters"
    assert o["ink"] > 7 and o["soft"] > 4.5, "hard to read"
    assert (o["back"] < 0.1) == (sys.argv[2] == "0"), "light and dark are the same"
EOF
done
echo "the page is readable"
