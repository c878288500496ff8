//! The codes that stand for floats of four bits.

/// The offset of the codes of floats.
pub(crate) const FLOAT_OFFSET: i32 = 12;

/// The codes of floats of four bits (e2m1) by their bits: twice the number, and [`FLOAT_OFFSET`].
pub(crate) const FLOATS: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// The first place of each code in [`FLOATS`].
pub(super) const PLACES: [u8; 25] = {
    let (mut places, mut place) = ([0; 25], FLOATS.len());
    while place > 0 {
        place -= 1;
        places[FLOATS[place] as usize] = place as u8;
    }
    places
};
