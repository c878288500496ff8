//! `json_shape`: how many lists and objects a JSON text has, and how deep they nest, before it is parsed.
use pyo3::{prelude::*, pybacked::PyBackedBytes};

/// The lists and objects that a text opens outside of its strings, and the most that are open at once.
///
/// It takes time linear in any bytes, and no lock: of a text that is no JSON the numbers are those up to where it ends.
#[pyfunction]
fn json_shape(py: Python<'_>, text: PyBackedBytes) -> (usize, usize) {
    py.detach(|| shape(&text))
}

fn shape(text: &[u8]) -> (usize, usize) {
    let (mut num_parts, mut depth, mut max_depth) = (0, 0_usize, 0);
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => skip_string(&mut bytes),
            b'[' | b'{' => {
                num_parts += 1;
                depth += 1;
                max_depth = max_depth.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    (num_parts, max_depth)
}

/// Goes behind the quote that ends a string.
fn skip_string(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            // What follows a backslash ends nothing.
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(json_shape, module)?)
}

#[cfg(test)]
mod tests {
    use super::shape;

    #[test]
    fn brackets_within_strings_count_for_nothing() {
        assert_eq!(shape(br#"{"[[": ["]", "\"[", "\\"], "a": {}}"#), (3, 2));
    }

    #[test]
    fn a_string_without_an_end_hides_the_rest() {
        assert_eq!(shape(br#"[["[[[["#), (2, 2));
        assert_eq!(shape(br#"["\"#), (1, 1));
    }

    #[test]
    fn brackets_that_close_nothing_leave_no_room_for_deeper_ones() {
        assert_eq!(shape(b"]]]]["), (1, 1));
    }
}
