//! Sums and numbers with a factor, against float64.

use crate::oracle::{assert_close, numbers, rounding, wide};
use chairlift_kernels::{
    Rows, RowsMut,
    ops::scale::{add_scaled, scale},
};

#[test]
fn sums_and_scores_have_their_factors() {
    let x = numbers::<f32>(1, 40);
    let update = numbers::<f32>(2, 40);
    let mut sum = x.clone();
    add_scaled(
        RowsMut::contiguous(&mut sum, 20),
        Rows::contiguous(&update, 20),
        0.22,
    )
    .expect("it fits");
    let expected: Vec<f64> = wide(&x)
        .iter()
        .zip(wide(&update))
        .map(|(x, update)| x + 0.22 * update)
        .collect();
    assert_close(&sum, &expected, rounding::<f32>(), 1e-6, "sum");
    for cap in [None, Some(0.7_f32)] {
        let mut scores = x.clone();
        scale(RowsMut::contiguous(&mut scores, 20), 3.0, cap).expect("it fits");
        let expected: Vec<f64> = wide(&x)
            .iter()
            .map(|x| {
                cap.map_or(3.0 * x, |cap| {
                    f64::from(cap) * (3.0 * x / f64::from(cap)).tanh()
                })
            })
            .collect();
        assert_close(&scores, &expected, rounding::<f32>(), 1e-6, "scores");
    }
}
