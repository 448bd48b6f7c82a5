# The table of public names: type checkers and editors read it, and so does __init__.py.

from typing import TYPE_CHECKING, Any

from bridge.algorithms.a2c import A2C as A2C
from bridge.algorithms.dqn import DQN as DQN
from bridge.algorithms.ppo import PPO as PPO
from bridge.algorithms.pqn import PQN as PQN
from bridge.algorithms.sac import SAC as SAC
from bridge.algorithms.td3 import DDPG as DDPG
from bridge.algorithms.td3 import TD3 as TD3
from bridge.atari import make_atari_env as make_atari_env
from bridge.checkpoint import RolloutCheckpoint as RolloutCheckpoint
from bridge.checkpoint import load_checkpoint as load_checkpoint
from bridge.checkpoint import save_checkpoint as save_checkpoint
from bridge.dlpack import to_jax as to_jax
from bridge.dlpack import to_torch as to_torch
from bridge.engine.callbacks.callback_schedule import ScheduledCallback as ScheduledCallback
from bridge.errors import NotCompilable as NotCompilable
from bridge.evaluation import Evaluation as Evaluation
from bridge.evaluation import evaluate as evaluate
from bridge.factory import make_vec_env as make_vec_env
from bridge.host_env.gym_vec_env import GymVecEnv as GymVecEnv
from bridge.host_env.native import Buffers as Buffers
from bridge.host_env.native import NativeVectorEnv as NativeVectorEnv
from bridge.host_env.native_vec_env import NativeVecEnv as NativeVecEnv
from bridge.host_env.processes.process_vec_env import ProcessVecEnv as ProcessVecEnv
from bridge.host_env.processes.worker_process import WorkerDied as WorkerDied
from bridge.host_env.processes.worker_process import WorkerError as WorkerError
from bridge.host_env.serial_vec_env import SerialVecEnv as SerialVecEnv
from bridge.host_env.vector_envs.ray_vector_env import RayVectorEnv as RayVectorEnv
from bridge.imitation.dagger_callback import DAggerCallback as DAggerCallback
from bridge.imitation.pretraining import pretrain as pretrain
from bridge.imitation.recording_episodes import record_episodes as record_episodes
from bridge.replay import HerReplayBuffer as HerReplayBuffer
from bridge.replay import PrioritizedReplayBuffer as PrioritizedReplayBuffer
from bridge.replay import ReplayBuffer as ReplayBuffer
from bridge.results import plot_results as plot_results
from bridge.results.pretrained import load_pretrained as load_pretrained
from bridge.results.video import record as record
from bridge.seeds import train_seeds as train_seeds
from bridge.self_play.self_play_callback import SelfPlayCallback as SelfPlayCallback
from bridge.self_play.tournament import Tournament as Tournament
from bridge.self_play.tournament import plot_tournament as plot_tournament
from bridge.self_play.tournament import tournament as tournament
from bridge.vec_env.jax_vec_env import JaxVecEnv as JaxVecEnv
from bridge.wrappers import CompiledWrapper as CompiledWrapper
from bridge.wrappers import register_wrapper as register_wrapper
from jaxenvs.compilation.cache import configure as configure

if TYPE_CHECKING:  # need sb3-contrib, and so are not in __all__
    from bridge.algorithms.crossq import CrossQ as CrossQ
    from bridge.algorithms.maskable_ppo import MaskablePPO as MaskablePPO
    from bridge.algorithms.maskable_recurrent_ppo import MaskableRecurrentPPO as MaskableRecurrentPPO
    from bridge.algorithms.qrdqn import QRDQN as QRDQN
    from bridge.algorithms.recurrent_ppo import RecurrentPPO as RecurrentPPO
    from bridge.algorithms.tqc import TQC as TQC

__version__: str

def __getattr__(name: str) -> Any: ...  # modules and CONTRIB
