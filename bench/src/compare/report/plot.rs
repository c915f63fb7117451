//! Plots: of each family of works and each figure one, in which every system has a colour. Over the sizes of the
//! works.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use plotters::prelude::*;

use super::{Row, short};
use crate::compare::sample::Figure;
use crate::compare::systems;

const SIZE: (u32, u32) = (900, 540);
/// The legend has a place of its own for so many sizes.
const SIZES_A_LEGEND: usize = 3;
/// The systems' colours, in their order, which are told from one another by most eyes.
const COLOURS: [RGBColor; 9] = [
    RGBColor(0, 0, 0),
    RGBColor(150, 150, 150),
    RGBColor(166, 206, 227),
    RGBColor(227, 26, 28),
    RGBColor(31, 120, 180),
    RGBColor(51, 160, 44),
    RGBColor(255, 127, 0),
    RGBColor(106, 61, 154),
    RGBColor(177, 89, 40),
];

/// Draws all that `rows` give.
pub fn all(rows: &[Row], directory: &Path) {
    let names = systems::all().into_iter().map(|system| system.name());
    let colours: BTreeMap<&str, RGBColor> = names.zip(COLOURS.into_iter().cycle()).collect();
    let plots: BTreeSet<(&str, Figure)> =
        rows.iter().flat_map(|row| row.figures.keys().map(|figure| (row.family.as_str(), *figure))).collect();
    for (family, figure) in plots {
        let path = directory.join(format!("{}-{}.svg", name(family), name(figure.label())));
        draw(rows, family, figure, &colours, &path);
    }
}

/// As a part of a file's name.
fn name(text: &str) -> String {
    let words = text.split(|character: char| !character.is_ascii_alphanumeric());
    let words: Vec<String> = words.filter(|word| !word.is_empty()).map(str::to_ascii_lowercase).collect();
    words.join("-")
}

/// The points of one system: size, and least, median and most.
type Points = Vec<(u32, [f64; 3])>;

fn draw(rows: &[Row], family: &str, figure: Figure, colours: &BTreeMap<&str, RGBColor>, path: &Path) {
    let mut systems: BTreeMap<&str, Points> = BTreeMap::new();
    let mut unit = "";
    for row in rows.iter().filter(|row| row.family == family) {
        unit = row.size.1;
        if let Some(told) = row.figures.get(&figure) {
            // What is nothing has no place on a logarithmic scale.
            let points = [told.least, told.median, told.most].map(|value| value.max(f64::MIN_POSITIVE));
            systems.entry(row.system).or_default().push((row.size.0, points));
        }
    }
    let values = || systems.values().flatten().flat_map(|(_, points)| points.iter().copied());
    let least = values().filter(|value| *value > 1e-9).fold(f64::INFINITY, f64::min);
    let most = values().fold(0.0, f64::max);
    if most < least {
        return;
    }
    // The scale has its steps from the first power of ten on that is above its bottom.
    let (bottom, top) = (10f64.powf(least.log10().floor()) * 0.99, most * 1.4);
    let sizes: BTreeSet<u32> = systems.values().flatten().map(|(size, _)| *size).collect();
    let places: Vec<u32> = sizes.into_iter().collect();
    let width = places.len() + places.len().div_ceil(SIZES_A_LEGEND);
    let last = width as f64 - 0.5;

    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE).unwrap();
    let mut chart = ChartBuilder::on(&area)
        .caption(family, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(-0.5..last, (bottom..top).log_scale())
        .unwrap();
    let place = |at: &f64| {
        let nearest = at.round();
        let found = places.get(nearest as usize).filter(|_| (at - nearest).abs() < 1e-6 && nearest >= 0.0);
        found.map_or(String::new(), u32::to_string)
    };
    chart
        .configure_mesh()
        .x_desc(format!("{unit}s"))
        .y_desc(figure.label())
        .x_labels(2 * width + 1)
        .x_label_formatter(&place)
        .y_labels(20)
        .y_label_formatter(&|value| short(*value))
        .disable_x_mesh()
        .max_light_lines(0)
        .draw()
        .unwrap();
    let count = systems.len();
    // A little beside one another, so that none covers another.
    let apart = 0.5 / f64::from(u32::try_from(count * places.len()).unwrap());
    for (at, (system, points)) in systems.iter().enumerate() {
        let colour = colours[system];
        let aside = (at as f64 - (count as f64 - 1.0) / 2.0) * apart;
        let x = |size: u32| places.iter().position(|place| *place == size).unwrap() as f64 + aside;
        let medians = points.iter().map(|(size, [_, median, _])| (x(*size), *median));
        chart
            .draw_series(LineSeries::new(medians, colour.stroke_width(2)))
            .unwrap()
            .label(*system)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        let bars = points.iter().map(|(size, [least, median, most])| {
            ErrorBar::new_vertical(x(*size), *least, *median, *most, colour.filled(), 6)
        });
        chart.draw_series(bars).unwrap();
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
        .unwrap();
    area.present().unwrap();
}
