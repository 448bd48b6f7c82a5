"""bridge.record: the episodes that evaluate counts, of environments of every kind, in their own pictures."""

import importlib.util

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stable_baselines3
from gymnasium import spaces
from PIL import Image
from stable_baselines3.common.env_util import make_vec_env as sb3s_make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

import bridge
import jaxenvs
from bridge.results import video
from jaxenvs.drawing import BLACK, Canvas
from tests.masked_environments import GymnasiumLocks

needs_ffmpeg = pytest.mark.skipif(importlib.util.find_spec("imageio_ffmpeg") is None, reason="needs moviepy")


@pytest.fixture(scope="module")
def model():
    return bridge.PPO("MlpPolicy", bridge.make_vec_env("CartPole-v1", 2, seed=0), n_steps=8, seed=0).learn(16)


@pytest.mark.thorough
def test_the_episodes_are_those_of_evaluate_and_the_model_is_unchanged(model, tmp_path):
    before = model.get_env().get_attr("state"), model._last_obs.copy()
    episodes = bridge.record(model, tmp_path / "film.gif", n_episodes=2, seed=5)
    expected = bridge.evaluate(model, "CartPole-v1", 2, seed=5)
    assert episodes.returns.tolist() == expected.returns.tolist()
    assert episodes.lengths.tolist() == expected.lengths.tolist()
    assert episodes.terminated.all()
    jax.tree.map(np.testing.assert_array_equal, (model.get_env().get_attr("state"), model._last_obs), before)
    with Image.open(tmp_path / "film.gif") as film:
        # The first and the last state of each episode, and every second one between them.
        assert film.n_frames == sum(1 + -(-length // 2) for length in expected.lengths)
        assert (film.size, film.info["duration"]) == ((400, 267), 40)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": 3}, "model must be an SB3 model, got int"),
        ({"path": 3}, "path must be a path, got int"),
        ({"title": 3}, "title must be a str, got int"),
        ({"deterministic": "no"}, "deterministic must be a bool, got 'no'"),
    ],
)
def test_an_argument_of_another_type_is_named(given, said, model, tmp_path):
    with pytest.raises((TypeError, ValueError), match=said):
        bridge.record(**{"model": model, "path": tmp_path / "film.gif"} | given)


@pytest.mark.thorough(but=["film.mp4"])
@pytest.mark.parametrize("name", ["film.gif", pytest.param("film.mp4", marks=needs_ffmpeg)])
def test_a_folder_that_does_not_exist_is_named(name, model, tmp_path):
    with pytest.raises(FileNotFoundError, match=f"There is no such folder: '{tmp_path / 'absent'}'"):
        bridge.record(model, tmp_path / "absent" / name)


def test_the_last_picture_is_of_the_last_state(model, tmp_path):
    bridge.record(model, tmp_path / "film.gif", fps=10)
    with Image.open(tmp_path / "film.gif") as film:
        film.seek(film.n_frames - 1)
        shown = np.asarray(film.convert("RGB"), int)
    env = jaxenvs.make("CartPole-v1")
    state, timestep = env.reset(jax.random.fold_in(jax.random.key(0), 0))
    while not timestep.done:
        action, _ = model.predict(np.asarray(timestep.observation), deterministic=True)
        state, timestep = env.step(state, jnp.asarray(action))
    drawn = np.asarray(Image.fromarray(env.render(state)).resize((400, 267), Image.Resampling.BOX), int)
    assert np.abs(shown - drawn).mean() < 0.5


@needs_ffmpeg
def test_mp4_of_a_gymnasium_environment_that_the_model_was_trained_in_by_its_id(tmp_path, recwarn):
    import imageio_ffmpeg

    model = stable_baselines3.PPO("MlpPolicy", "Pendulum-v1", n_steps=8, batch_size=8)
    episodes = bridge.record(model, tmp_path / "film.mp4", max_steps=20, title="Pendulum")
    assert (episodes.lengths.tolist(), episodes.truncated.tolist()) == ([20], [True])
    assert not [str(each.message) for each in recwarn if "fork" in str(each.message)]
    about = next(imageio_ffmpeg.read_frames(str(tmp_path / "film.mp4")))
    assert about["source_size"] == (500, 500 + video.TITLE_HEIGHT)
    assert about["fps"] == 30
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"]


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["jax", "serial"])
def test_wrappers_around_the_environments_are_copied(backend, tmp_path):
    env = VecNormalize(VecFrameStack(bridge.make_vec_env("CartPole-v1", 2, seed=0, backend=backend), 3))
    model = bridge.PPO("MlpPolicy", env, n_steps=8, seed=0).learn(16)
    before = env.obs_rms.mean.copy()
    given = "CartPole-v1" if backend == "jax" else gymnasium.make("CartPole-v1", render_mode="rgb_array")
    first, second = (bridge.record(model, tmp_path / "film.gif", each) for each in (None, given))
    assert first.returns.tolist() == second.returns.tolist()
    np.testing.assert_array_equal(env.obs_rms.mean, before)
    if backend == "jax":
        assert first.returns.tolist() == bridge.evaluate(model, env, 1).returns.tolist()


def test_a_vec_env_with_pictures_is_stepped_itself(model, tmp_path):
    env = sb3s_make_vec_env("CartPole-v1", 2, env_kwargs={"render_mode": "rgb_array"})
    episodes = bridge.record(model, tmp_path / "film.gif", env)
    with Image.open(tmp_path / "film.gif") as film:
        assert film.n_frames == -(-(episodes.lengths[0] + 1) // 2) + episodes.lengths[0] % 2


@jaxenvs.environment
class Square(jaxenvs.Environment[jax.Array]):
    """A disc in a square world, which names no size of its picture."""

    observation_space = spaces.Box(-1.0, 1.0, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, key):
        return jnp.zeros(1), jaxenvs.TimeStep.create(jnp.zeros(1))

    def step(self, state, action):
        return state, jaxenvs.TimeStep.create(state)

    def draw(self, state, height, width):
        return Canvas.blank(height, width, -1.0, 1.0, -1.0, 1.0).circle((0.0, 0.0), 0.5, BLACK).picture()


def test_a_circle_of_a_square_world_stays_a_circle(tmp_path):
    env = jaxenvs.TimeLimit(Square(), 3)
    model = bridge.PPO("MlpPolicy", env, n_steps=8, batch_size=8)
    bridge.record(model, tmp_path / "film.gif")
    with Image.open(tmp_path / "film.gif") as film:
        dark = np.asarray(film.convert("L")) < 128
    assert dark.shape[0] == dark.shape[1]
    height, width = (np.flatnonzero(dark.any(axis)).size for axis in (1, 0))
    assert abs(height - width) <= 1
    assert height == pytest.approx(dark.shape[0] / 2, abs=2)


@jaxenvs.environment
class Undrawn(Square):
    """The same environment without a picture."""

    draw = jaxenvs.Environment.draw


def test_mistakes_say_what_to_do(model, tmp_path, monkeypatch):
    film = tmp_path / "film.gif"
    with pytest.raises(ValueError, match=r"path must end with \.gif or \.mp4, got film\.avi"):
        bridge.record(model, "film.avi")
    with pytest.raises(ValueError, match=r"env has render_mode=None.*render_mode='rgb_array'"):
        bridge.record(model, film, gymnasium.make("CartPole-v1"))
    with pytest.raises(ValueError, match=r"Undrawn cannot be drawn: define Undrawn\.draw"):
        bridge.record(model, film, Undrawn())
    with pytest.raises(TypeError, match="env must be an id"):
        bridge.record(model, film, 3)
    with pytest.raises(jaxenvs.UnknownEnvironment, match="CartPole-v1"):
        bridge.record(model, film, "CartPol-v1")
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="has no environments: pass env"):
        bridge.record(bridge.PPO.load(tmp_path / "model"), film)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'pip install "jaxenvs\[video\]"'):
        bridge.record(model, "film.mp4")
    assert not film.exists()


def test_normalized_observations_without_statistics_are_warned_of(tmp_path):
    model = bridge.PPO("MlpPolicy", VecNormalize(bridge.make_vec_env("CartPole-v1", 1)), n_steps=8, batch_size=8)
    model.save(tmp_path / "model")
    with pytest.warns(UserWarning, match="wrapped in a VecNormalize"):
        bridge.record(bridge.PPO.load(tmp_path / "model"), tmp_path / "film.gif", "CartPole-v1")


class DrawnLocks(GymnasiumLocks):
    """Locks, which assert that actions are legal, with a picture."""

    render_mode = "rgb_array"

    def render(self):
        return np.zeros((20, 30, 3), np.uint8)


def test_maskable_ppo_takes_legal_actions(tmp_path):
    pytest.importorskip("sb3_contrib")
    model = bridge.MaskablePPO("MlpPolicy", DrawnLocks(), n_steps=8, batch_size=8)
    assert bridge.record(model, tmp_path / "film.gif", DrawnLocks()).lengths.tolist() == [5]
