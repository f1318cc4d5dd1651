//! Arrays of the host that know their shape.

use super::Element;

/// What [`Tensor::new`](super::Tensor::new) takes: a number, or arrays, slices and vectors of numbers, nested to any
/// depth.
pub trait Nested {
    /// The type of the numbers.
    type Item: Element;

    /// Appends the numbers in row-major order.
    fn append_to(&self, numbers: &mut Vec<Self::Item>);

    /// The sizes of the dimensions, from the last to the first. `None` if rows differ. Without `data`, which an empty
    /// array has none of, the sizes that the type gives.
    fn reversed_shape(data: Option<&Self>) -> Option<Vec<usize>>;
}

impl<T: Element> Nested for T {
    type Item = T;

    fn append_to(&self, numbers: &mut Vec<T>) {
        numbers.push(*self);
    }

    fn reversed_shape(_: Option<&Self>) -> Option<Vec<usize>> {
        Some(Vec::new())
    }
}

/// The reversed shape of `n` rows, of which these are there.
fn shape_of<A: Nested>(rows: &[A], n: usize) -> Option<Vec<usize>> {
    let mut shape = A::reversed_shape(rows.first())?;
    if rows.iter().skip(1).any(|row| A::reversed_shape(Some(row)).as_ref() != Some(&shape)) {
        return None;
    }
    shape.push(n);
    Some(shape)
}

impl<A: Nested, const N: usize> Nested for [A; N] {
    type Item = A::Item;

    fn append_to(&self, numbers: &mut Vec<A::Item>) {
        self.as_slice().append_to(numbers);
    }

    fn reversed_shape(data: Option<&Self>) -> Option<Vec<usize>> {
        shape_of(data.map_or(&[], |rows| rows.as_slice()), N)
    }
}

impl<A: Nested> Nested for [A] {
    type Item = A::Item;

    fn append_to(&self, numbers: &mut Vec<A::Item>) {
        self.iter().for_each(|row| row.append_to(numbers));
    }

    fn reversed_shape(data: Option<&Self>) -> Option<Vec<usize>> {
        let rows = data.unwrap_or_default();
        shape_of(rows, rows.len())
    }
}

impl<A: Nested> Nested for Vec<A> {
    type Item = A::Item;

    fn append_to(&self, numbers: &mut Vec<A::Item>) {
        self.as_slice().append_to(numbers);
    }

    fn reversed_shape(data: Option<&Self>) -> Option<Vec<usize>> {
        <[A]>::reversed_shape(data.map(Vec::as_slice))
    }
}
