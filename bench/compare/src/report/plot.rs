//! Plots: one for each family of workloads and each metric, over the sizes of the workloads. Each
//! subject has its colour.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use plotters::prelude::*;

use super::{Row, short};
use crate::sample::Metric;
use crate::subjects;

const SIZE: (u32, u32) = (900, 540);
/// The number of sizes for which the legend gets the width of one more.
const SIZES_PER_LEGEND: usize = 3;
/// The colours of the subjects, in order. Most readers can distinguish them.
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

/// Draws all plots of `rows` into files in `directory`.
pub fn all(rows: &[Row], directory: &Path) {
    let names = subjects::all().into_iter().map(|subject| subject.name());
    let colours: BTreeMap<&str, RGBColor> = names.zip(COLOURS.into_iter().cycle()).collect();
    let plots: BTreeSet<(&str, Metric)> =
        rows.iter().flat_map(|row| row.figures.keys().map(|metric| (row.family.as_str(), *metric))).collect();
    for (family, metric) in plots {
        let path = directory.join(format!("{}-{}.svg", file_name(family), file_name(metric.label())));
        draw(rows, family, metric, &colours, &path);
    }
}

/// Returns `text` in a form for file names.
fn file_name(text: &str) -> String {
    let words = text.split(|character: char| !character.is_ascii_alphanumeric());
    let words: Vec<String> = words.filter(|word| !word.is_empty()).map(str::to_ascii_lowercase).collect();
    words.join("-")
}

/// The points of one subject: the size, with the least, median and most figure.
type Points = Vec<(u32, [f64; 3])>;

fn draw(rows: &[Row], family: &str, metric: Metric, colours: &BTreeMap<&str, RGBColor>, path: &Path) {
    let mut subjects: BTreeMap<&str, Points> = BTreeMap::new();
    let mut unit = "";
    for row in rows.iter().filter(|row| row.family == family) {
        unit = row.size.1;
        if let Some(summary) = row.figures.get(&metric) {
            // A logarithmic scale has no zero.
            let points =
                [summary.least, summary.median, summary.most].map(|value| value.max(f64::MIN_POSITIVE));
            subjects.entry(row.subject).or_default().push((row.size.0, points));
        }
    }
    let values = || subjects.values().flatten().flat_map(|(_, points)| points.iter().copied());
    let least = values().filter(|value| *value > 1e-9).fold(f64::INFINITY, f64::min);
    let most = values().fold(0.0, f64::max);
    if most < least {
        return;
    }
    // The labels start at the first power of ten above the bottom, so it is just below one.
    let (bottom, top) = (10f64.powf(least.log10().floor()) * 0.99, most * 1.4);
    let sizes: BTreeSet<u32> = subjects.values().flatten().map(|(size, _)| *size).collect();
    let places: Vec<u32> = sizes.into_iter().collect();
    let width = places.len() + places.len().div_ceil(SIZES_PER_LEGEND);
    let last = width as f64 - 0.5;

    let page = SVGBackend::new(path, SIZE).into_drawing_area();
    page.fill(&WHITE).unwrap();
    let mut chart = ChartBuilder::on(&page)
        .caption(family, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(-0.5..last, (bottom..top).log_scale())
        .unwrap();
    let place = |position: &f64| {
        let nearest = position.round();
        let found =
            places.get(nearest as usize).filter(|_| (position - nearest).abs() < 1e-6 && nearest >= 0.0);
        found.map_or(String::new(), u32::to_string)
    };
    chart
        .configure_mesh()
        .x_desc(format!("{unit}s"))
        .y_desc(metric.label())
        .x_labels(2 * width + 1)
        .x_label_formatter(&place)
        .y_labels(20)
        .y_label_formatter(&|value| short(*value))
        .disable_x_mesh()
        .max_light_lines(0)
        .draw()
        .unwrap();
    let count = subjects.len();
    // Shifts the subjects sideways, so that they do not cover each other.
    let apart = 0.5 / f64::from(u32::try_from(count * places.len()).unwrap());
    for (index, (subject, points)) in subjects.iter().enumerate() {
        let colour = colours[subject];
        let aside = (index as f64 - (count as f64 - 1.0) / 2.0) * apart;
        let x = |size: u32| places.iter().position(|place| *place == size).unwrap() as f64 + aside;
        let medians = points.iter().map(|(size, [_, median, _])| (x(*size), *median));
        chart
            .draw_series(LineSeries::new(medians, colour.stroke_width(2)))
            .unwrap()
            .label(*subject)
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
    page.present().unwrap();
}
