"""plot_results: what is read of trainings of each kind, and that the curve is the statistic that its label names."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats
from stable_baselines3.common.monitor import ResultsWriter

import bridge
from bridge.app.training.callbacks import EpisodeLog
from bridge.results.plotting import bootstrap, interquartile_mean
from jaxenvs import learn


def monitor_file(folder, returns, length=10, seconds=36.0):
    """Write the file of a VecMonitor for episodes of one length, `seconds` apart."""
    folder.mkdir(exist_ok=True)
    writer = ResultsWriter(str(folder / "monitor.csv"), {"t_start": 0.0, "env_id": "None"})
    for number, gained in enumerate(returns, start=1):
        writer.write_row({"r": gained, "l": length, "t": seconds * number})
    writer.close()
    return folder


def metrics_of(returns, episodes=None):
    """Return metrics as `learn.train` does, for rollouts of 100 steps; returns without an episode are NaN."""
    returns = jnp.asarray(returns, jnp.float32)
    timesteps = jnp.broadcast_to(100 * jnp.arange(1, returns.shape[-1] + 1), returns.shape)
    episodes = jnp.full(returns.shape, 5) if episodes is None else jnp.asarray(episodes)
    own = jnp.where(episodes > 0, returns, jnp.nan)
    return {
        "timesteps": timesteps,
        "episodes": episodes,
        "episode_return": jnp.full(returns.shape, -1e3),  # a mean over rows before, which is not drawn
        "iteration_episode_return": own,
        "policy_loss": returns,
    }


def plot(dirs, **arguments):
    """The axes, and x, y and label of each curve."""
    axes = bridge.plot_results(dirs, ax=Figure().add_subplot(), **arguments)
    return axes, [(*line.get_data(), line.get_label()) for line in axes.lines]


def band(axes):
    """Lower and upper end of the only band."""
    (patch,) = axes.collections
    vertices = patch.get_paths()[0].vertices
    at = np.unique(vertices[:, 0])
    ends = [vertices[vertices[:, 0] == x, 1] for x in at]
    return np.array([each.min() for each in ends]), np.array([each.max() for each in ends])


# As SciPy's `bootstrap` names it, by its version.
GENERATOR = "rng" if "rng" in inspect.signature(stats.bootstrap).parameters else "random_state"


def test_the_interquartile_mean_and_its_interval_are_those_of_scipy():
    values = np.random.default_rng(1).normal(size=(10, 3))
    np.testing.assert_allclose(interquartile_mean(values), stats.trim_mean(values, 0.25))
    low, high = bootstrap(values)
    reference = stats.bootstrap(
        (values,),
        lambda sample, axis: stats.trim_mean(sample, 0.25, axis=axis),
        method="percentile",
        **{GENERATOR: np.random.default_rng(2)},
    ).confidence_interval
    width = reference.high - reference.low
    np.testing.assert_allclose((low - reference.low) / width, 0, atol=0.05)
    np.testing.assert_allclose((high - reference.high) / width, 0, atol=0.05)


def test_of_one_monitor_the_curve_is_the_mean_of_episodes(tmp_path):
    axes, ((x, y, label),) = plot(str(monitor_file(tmp_path, range(20))), task_name="Task")
    # Four stretches of five episodes, of ten steps each.
    np.testing.assert_allclose(x, [25, 75, 125, 175])
    np.testing.assert_allclose(y, [2, 7, 12, 17])
    np.testing.assert_allclose(band(axes)[0], [0.4, 5.4, 10.4, 15.4], rtol=1e-6)
    assert label == "mean of episodes, 10th to 90th percentile"
    assert (axes.get_title(loc="left"), axes.get_xlabel()) == ("Task", "environment steps")


@pytest.mark.parametrize(
    ("arguments", "x"),
    [
        ({"num_timesteps": 100}, [25, 75]),
        ({"x_axis": "episodes"}, [2.5, 7.5, 12.5, 17.5]),
        ({"x_axis": "walltime_hrs"}, [0.025, 0.075, 0.125, 0.175]),
    ],
    ids=str,
)
def test_arguments_of_sb3_mean_what_they_mean_there(arguments, x, tmp_path):
    _, ((at, _, _),) = plot([monitor_file(tmp_path, range(20))], **arguments)
    np.testing.assert_allclose(at, x)


def test_seeds_are_aggregated_and_names_draw_a_curve_each(tmp_path):
    seeds = [monitor_file(tmp_path / str(seed), np.full(20, seed)) for seed in (0, 1, 2, 50)]
    _, (iqm, other) = plot({"PPO": seeds, "A2C": seeds[3]})
    np.testing.assert_allclose(iqm[1], 1.5)  # of the middle half
    assert iqm[2] == "PPO: IQM of 4 runs, 95 % interval"
    np.testing.assert_allclose(other[1], 50)
    axes, ((_, y, label),) = plot(seeds, aggregate="median")
    np.testing.assert_allclose(y, 1.5)
    assert label == "median of 4 runs, quartiles"
    low, high = band(axes)
    np.testing.assert_allclose((low, high), np.broadcast_to([[0.75], [14]], (2, len(y))))


def test_metrics_of_a_sweep_are_runs_weighted_by_their_episodes():
    returns = [[0.0, 10, 20, 30], [0, 20, 30, 40]]
    episodes = [[0, 5, 5, 15], [0, 5, 5, 15]]  # nothing ended in the first rollout
    _, ((x, y, label),) = plot(metrics_of(returns, episodes))
    np.testing.assert_allclose(x, [200, 1000 / 3])  # thirds of 400 steps, of which nothing ended in the first
    np.testing.assert_allclose(y, [(10 + 20) / 2, (27.5 + 37.5) / 2])
    assert label.startswith("IQM of 2 runs")


def test_a_seed_that_ended_no_episode_counts_as_before():
    returns, episodes = [[1.0, 2, 3, 4], [1, 0, 0, 4]], [[5, 5, 5, 5], [5, 0, 0, 5]]
    _, ((x, y, _),) = plot(metrics_of(returns, episodes))
    np.testing.assert_allclose(x, [100, 300])  # halves, as one of them has two rows
    np.testing.assert_allclose(y, [(1.5 + 1) / 2, (3.5 + 4) / 2])
    episodes = [[5, 5, 5, 5, 5, 5], [5, 5, 5, 0, 0, 5]]
    _, ((_, y, _),) = plot(metrics_of([[0.0, 0, 0, 0, 0, 0], [2, 4, 6, 0, 0, 8]], episodes))
    np.testing.assert_allclose(y, [1, 2.5, 2.5, 4])  # quarters of 600 steps: the second seed's are 2, 5, none and 8


def test_a_result_and_its_metrics_draw_the_same():
    metrics = metrics_of(np.arange(10.0))
    (of_metrics,), (of_result,) = plot(metrics)[1], plot(learn.Result(None, metrics))[1]
    np.testing.assert_allclose(of_metrics[1], np.arange(10))
    np.testing.assert_array_equal(of_result[1], of_metrics[1])
    assert of_metrics[2] == "mean of episodes"


def test_runs_of_the_command_are_read(tmp_path):
    episodes = EpisodeLog()
    episodes.episodes = [(10 * number + 10, float(number)) for number in range(20)]
    episodes.write(tmp_path)
    _, ((x, y, _),) = plot(tmp_path)
    np.testing.assert_allclose(x, [25, 75, 125, 175])
    np.testing.assert_allclose(y, [2, 7, 12, 17])


def test_a_run_without_episodes_says_so(tmp_path):
    EpisodeLog().write(tmp_path)
    _, ((x, _, label),) = plot({"PPO": tmp_path})
    assert (len(x), label) == (0, "PPO: no episode has ended")


def test_without_axes_there_is_a_figure_of_pyplots(tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    axes = bridge.plot_results(monitor_file(tmp_path, range(20)), figsize=(8, 2))
    assert pyplot.gcf() is axes.figure
    assert tuple(axes.figure.get_size_inches()) == (8, 2)
    pyplot.close(axes.figure)


@pytest.mark.parametrize(
    ("dirs", "arguments", "error", "message"),
    [
        ("nowhere", {}, FileNotFoundError, "holds neither monitor files"),
        ([], {}, ValueError, "at least one training, got none"),
        ({}, {}, ValueError, "at least one training, got none"),
        (3, {}, TypeError, "got int"),
        (metrics_of(np.zeros((2, 2, 2))), {}, ValueError, r"\(num_seeds, num_rows\)"),
        ({"episode_return": np.zeros(3)}, {}, ValueError, "timesteps is missing"),
        (metrics_of(np.zeros(5)), {"x_axis": "walltime_hrs"}, ValueError, "needs monitor files"),
        (metrics_of(np.zeros(5)), {"x_axis": "hours"}, ValueError, "x_axis must be one of 'timesteps'"),
        (metrics_of(np.zeros(5)), {"aggregate": "mean"}, ValueError, "aggregate must be one of 'iqm'"),
        (metrics_of(np.zeros(5)), {"num_timesteps": 0}, ValueError, "num_timesteps"),
    ],
    ids=str,
)
def test_what_cannot_be_drawn_is_refused(dirs, arguments, error, message):
    with pytest.raises(error, match=message):
        plot(dirs, **arguments)
