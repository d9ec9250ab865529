"""What is known of the Open X-Embodiment datasets, whose RLDS says neither its rate nor its robot.

The rates and robots follow the Open X-Embodiment sheet, as any4lerobot's configs give them, and LIBERO's and TDROID's
authors. The names are those of the layouts that the authors of BridgeData V2 and of OpenVLA's LIBERO data document.
"""

from __future__ import annotations

from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.reading.meaning import Meaning

_ENDING = "_converted_externally_to_rlds"
_TABLE = """
fractal20220817_data 3 Google Robot; kuka 10 Kuka iiwa; bridge_oxe 5 WidowX; bridge_orig 5 WidowX;
bridge_dataset 5 WidowX; taco_play 15 Franka; jaco_play 10 Jaco 2; berkeley_cable_routing 10 Franka;
roboturk 10 Sawyer; nyu_door_opening_surprising_effectiveness 3 Hello Stretch; viola 20 Franka;
berkeley_autolab_ur5 5 UR5; toto 30 Franka; language_table 10 xArm; columbia_cairlab_pusht_real 10 UR5;
stanford_kuka_multimodal_dataset 20 Kuka iiwa; nyu_rot_dataset 3 xArm; stanford_hydra_dataset 10 Franka;
austin_buds_dataset 20 Franka; nyu_franka_play_dataset 3 Franka; maniskill_dataset 20 Franka;
furniture_bench_dataset 10 Franka; cmu_franka_exploration_dataset 10 Franka; ucsd_kitchen_dataset 2 xArm;
ucsd_pick_and_place_dataset 3 xArm; austin_sailor_dataset 20 Franka; austin_sirius_dataset 20 Franka;
bc_z 10 Google Robot; utokyo_pr2_opening_fridge 10 PR2; utokyo_pr2_tabletop_manipulation 10 PR2;
utokyo_xarm_pick_and_place 10 xArm; utokyo_xarm_bimanual 10 xArm Bimanual; robo_net 1 Multi-Robot;
berkeley_mvp 5 xArm; berkeley_rpt 30 Franka; kaist_nonprehensile 10 Franka; tokyo_u_lsmo 10 Cobotta;
dlr_sara_pour 10 DLR SARA; dlr_sara_grid_clamp 10 DLR SARA; dlr_edan_shared_control 5 DLR EDAN;
asu_table_top 12.5 UR5; stanford_robocook 5 Franka; imperialcollege_sawyer_wrist_cam 10 Sawyer;
iamlab_cmu_pickup_insert 20 Franka; uiuc_d3field 1 Kinova Gen3; utaustin_mutex 20 Franka;
berkeley_fanuc_manipulation 10 Fanuc Mate; cmu_playing_with_food 10 Franka; cmu_play_fusion 5 Franka;
cmu_stretch 10 Hello Stretch; berkeley_gnm_recon 3 Jackal; berkeley_gnm_cory_hall 5 RC Car;
berkeley_gnm_sac_son 10 TurtleBot 2; droid 15 Franka; fmb_dataset 10 Franka; dobbe 3.75 Hello Stretch;
roboset 5 Franka; rh20t 10 Flexiv; tdroid_carrot_in_bowl 5 Franka; tdroid_pour_corn_in_pot 5 Franka;
tdroid_flip_pot_upright 5 Franka; tdroid_move_object_onto_plate 5 Franka; tdroid_knock_object_over 5 Franka;
tdroid_cover_object_with_towel 5 Franka; droid_wipe 15 Franka; libero_spatial_no_noops 20 Franka;
libero_object_no_noops 20 Franka; libero_goal_no_noops 20 Franka; libero_10_no_noops 20 Franka
"""
_EULER = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
_AXIS_ANGLE = ("x", "y", "z", "axis_angle1", "axis_angle2", "axis_angle3", "gripper")
_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "bridge": {"action": _EULER, "observation/state": _EULER},
    "libero": {"action": _AXIS_ANGLE, "observation/state": (*_AXIS_ANGLE, "gripper")},
}


def known_meaning(name: str, schema: Schema) -> Meaning | None:
    """What is known of a dataset of this name; None if nothing is. Names that do not fit the schema are left out."""
    name = name.removesuffix(_ENDING)
    known = next((row.split(" ", 2) for row in _ROWS if row.split(" ", 1)[0] == name), None)
    if known is None:
        return None
    names = _NAMES.get(name.partition("_")[0], {})
    fitting = {path: given for path, given in names.items() if _fits(schema.steps.get(path), given)}
    return Meaning(float(known[1]), known[2], fitting)


_ROWS = [" ".join(row.split()) for row in _TABLE.split(";")]


def _fits(field: Field | None, names: tuple[str, ...]) -> bool:
    return field is not None and field.shape == (len(names),)
