"use strict";
const button = document.getElementById("download");
button.hidden = false;
button.addEventListener("click", () => {
  const blob = new Blob([document.getElementById("data").textContent], { type: "application/json" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = "chairlift-bench.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});
