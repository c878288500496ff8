/** What slots and steps allow for lengths of a gamma law: benchmarks/slot_use.py in JavaScript. */

const CONTINUOUS_USE = 0.95;
const NUM_POINTS = 4001;
const CURVE_ROWS = 16;

/**
 * Return lengths over their mean, and the share of answers that are at most as long.
 * @param {number} cv deviation of the lengths over their mean
 */
function lengthsOf(cv) {
  // Over the logarithm of the length, the density is smooth for every shape.
  const shape = cv ** -2;
  const low = -40 / shape - 18 / Math.sqrt(shape);
  const high = Math.log((shape + 12 * Math.sqrt(shape) + 60) / shape);
  const length = [], below = [0];
  let before = 0;
  for (let i = 0; i < NUM_POINTS; i++) {
    const log = low + ((high - low) * i) / (NUM_POINTS - 1);
    const density = Math.exp(shape * (log - Math.expm1(log)));
    length.push(Math.exp(log));
    if (i) below.push(below[i - 1] + before + density);
    before = density;
  }
  return { length, below: below.map((sum) => sum / below[NUM_POINTS - 1]) };
}

/**
 * Return the share of slots that a static batch uses: the mean over the mean longest.
 * @param {number} cv deviation of the lengths over their mean
 * @param {number} rows rows of the batch
 */
function slotUse(cv, rows) {
  const { length, below } = lengthsOf(cv);
  let mean = 0, longest = 0;
  for (let i = 1; i < NUM_POINTS; i++) {
    const middle = (length[i] + length[i - 1]) / 2;
    mean += middle * (below[i] - below[i - 1]);
    longest += middle * (below[i] ** rows - below[i - 1] ** rows);
  }
  return mean / longest;
}

/**
 * Return the time of a step over that of one row, by a line.
 * @param {number} rows rows of the step
 * @param {number} stepRatio time of a step of 16 rows over that of one row
 */
function stepTime(rows, stepRatio) {
  return 1 + ((stepRatio - 1) * (rows - 1)) / (CURVE_ROWS - 1);
}

/**
 * Return the gain of continuous over static batching, and its parts.
 * @param {number} cv deviation of the lengths over their mean
 * @param {number} rows rows of the batch
 * @param {number} stepRatio time of a step of 16 rows over that of one row
 */
function gainOf(cv, rows, stepRatio) {
  const fixed = slotUse(cv, rows);
  const moving = Math.max(CONTINUOUS_USE, fixed);
  const slots = moving / fixed;
  const longer = stepTime(moving * rows, stepRatio) / stepTime(fixed * rows, stepRatio);
  return { fixed, moving, slots, longer, gain: slots / longer };
}
